import { readFile } from 'node:fs/promises';
import { parse, stringify } from 'yaml';
import { sha256Hex } from '../support/gateway.ts';
import { type Block, formatLocation } from './blocks.ts';

type Section = Record<string, Record<string, unknown>>;
type PolicyFile = Record<string, Section>;

const RULE_AGENT = 'reader';

/** Builds a variable for each `${env.NAME}`, so that a block loads without the credentials of its services. */
export function fillEnv(text: string): Record<string, string> {
  const names = [...text.matchAll(/\$\{env\.(\w+)\}/g)].map(([, name = '']) => name);
  return Object.fromEntries(
    names.map((name) => [name, name.endsWith('SHA256') ? sha256Hex(name) : `https://value-of-${name}.example`]),
  );
}

/**
 * The whole policy that a block belongs to. A block without a mark is whole. `part=rule` is one rule, and
 * `part=tools.<name>` and the like are keys of one declaration: they complete the page's first whole policy, or the
 * demo policies on a page without one.
 */
export async function completePolicy(block: Block, blocks: readonly Block[]): Promise<string> {
  if (block.mark === '') return block.text;
  const whole = blocks.find(({ page, language, mark }) => page === block.page && language === 'yaml' && mark === '');
  const policy = parse(whole?.text ?? (await readFile('policies/demo.yaml', 'utf8'))) as PolicyFile;
  const [, section = '', name = ''] = /^part=(\w+)(?:\.(.+))?$/.exec(block.mark) ?? [];
  const part = parse(block.text) as Record<string, unknown>;
  if (section === 'rule') {
    const agent = { keys: [`sha256:${sha256Hex(RULE_AGENT)}`], rules: [part] };
    return stringify({ ...policy, agents: { ...policy['agents'], [RULE_AGENT]: agent } });
  }
  if (name === '')
    throw new Error(`${formatLocation(block)}: "${block.mark}" does not say which declaration this is part of.`);
  const declaration = { ...policy[section]?.[name], ...part };
  return stringify({ ...policy, [section]: { ...policy[section], [name]: declaration } });
}

/** The policy that a block of policy tests is about: the last whole one before it. */
export function findTestedPolicy(block: Block, blocks: readonly Block[]): string {
  const policy = blocks.findLast(
    ({ page, line, language, mark }) => page === block.page && line < block.line && language === 'yaml' && mark === '',
  );
  if (policy === undefined) throw new Error(`${formatLocation(block)}: The page has no policy before these tests.`);
  return policy.text;
}
