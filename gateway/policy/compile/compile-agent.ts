import path from 'node:path';
import { parseDurationMs } from '../../domain/duration.ts';
import type { Agent, ApprovalSpec, JwtSpec, Person, Rule, Tool } from '../../domain/policy.ts';
import { DEFAULT_APPROVAL } from '../decide.ts';
import type { DeclaredEntry } from '../declarations.ts';
import {
  type CompileOptions,
  compileCondition,
  compileNumber,
  type ScopeVariable,
} from '../expressions/compile-expression.ts';
import { type CompiledTargets, explainUselessQuery, FactCollector } from '../expressions/required-facts.ts';
import {
  type Diagnostics,
  type DocumentPath,
  didYouMean,
  formatList,
  locateChild,
  locateKey,
  resolvePosition,
  type SourceLocation,
} from '../faults.ts';
import { compileGlob } from '../glob.ts';
import {
  type AgentDeclaration,
  type PersonDeclaration,
  parseRate,
  type RuleDeclaration,
} from '../policy-file-schema.ts';
import { type Env, resolveSecrets } from '../resolve-secrets.ts';
import { readDeclaredArguments } from './compile-input-schema.ts';
import { unwrapTemplate } from './compile-tool.ts';
import { compileDelay, compileVoters } from './compile-voters.ts';

const RULE_VARIABLES: readonly ScopeVariable[] = ['args', 'agent', 'tool', 'saga', 'run', 'now'];
/** Conditions of a rule can also read the history and the taint of the agent. */
const CONDITION_VARIABLES: readonly ScopeVariable[] = [...RULE_VARIABLES, 'history', 'tainted'];

export function compileAgent(
  declared: DeclaredEntry<AgentDeclaration>,
  env: Env,
  targets: CompiledTargets,
  diagnostics: Diagnostics,
): Agent | undefined {
  const { name, location, value } = declared;
  if (value === undefined) return undefined;
  return {
    name,
    keys: compileKeyDigests(value.keys ?? [], locateChild(location, 'keys'), env, diagnostics),
    ...compileJwt(value.jwt, locateChild(location, 'jwt'), env, diagnostics),
    rules: (value.rules ?? []).flatMap((rule, index) => {
      const earlierCount = (value.rules ?? []).slice(0, index).filter((earlier) => earlier.allow === rule.allow).length;
      const compiled = compileRule({ agent: name, index, earlierCount }, rule, locateChild(location, 'rules', index), {
        env,
        targets,
        diagnostics,
      });
      return compiled === undefined ? [] : [compiled];
    }),
  };
}

export function compilePerson(
  declared: DeclaredEntry<PersonDeclaration>,
  env: Env,
  diagnostics: Diagnostics,
): Person | undefined {
  const { name, location, value } = declared;
  if (value === undefined) return undefined;
  return {
    name,
    keys: compileKeyDigests(value.keys ?? [], locateChild(location, 'keys'), env, diagnostics),
    roles: value.roles ?? ['viewer'],
    groups: value.groups ?? [],
  };
}

/** Digests of bearer keys. Skips an entry whose environment variable is empty. */
function compileKeyDigests(
  entries: readonly string[],
  location: SourceLocation,
  env: Env,
  diagnostics: Diagnostics,
): Buffer[] {
  const keys: Buffer[] = [];
  for (const [index, entry] of entries.entries()) {
    let isResolved = true;
    const { text } = resolveSecrets(entry, env, { file: false }, (message, offset) => {
      isResolved = false;
      diagnostics.addError(locateChild(location, index), message, offset);
    });
    if (!isResolved || text === '' || text === 'sha256:') continue;
    const hex = /^sha256:([0-9a-f]{64})$/i.exec(text)?.[1];
    if (hex === undefined)
      diagnostics.addError(
        locateChild(location, index),
        'A key must be "sha256:" and the 64 hex digits of the SHA-256 of the bearer key. Run npx oncegate key new to make one.',
      );
    else keys.push(Buffer.from(hex, 'hex'));
  }
  return keys;
}

/** Requires https, because the keys of the issuer authenticate agents. Skips an empty issuer or audience. */
function compileJwt(
  jwt: AgentDeclaration['jwt'],
  location: SourceLocation,
  env: Env,
  diagnostics: Diagnostics,
): { jwt?: JwtSpec } {
  if (jwt === undefined) return {};
  const resolve = (template: string, key: string): string =>
    resolveSecrets(template, env, { file: false }, (message, offset) =>
      diagnostics.addError(locateChild(location, key), message, offset),
    ).text;
  const issuer = resolve(jwt.issuer, 'issuer');
  const allowPrivate = jwt.allowPrivate ?? false;
  if (issuer !== '')
    checkIssuer(issuer, allowPrivate, (message) => diagnostics.addError(locateChild(location, 'issuer'), message));
  const audience = resolve(jwt.audience, 'audience');
  if (issuer === '' || audience === '') return {};
  return { jwt: { issuer, audience, claims: jwt.claims ?? {}, allowPrivate } };
}

function checkIssuer(issuer: string, allowPrivate: boolean, reportFault: (message: string) => void): void {
  if (!URL.canParse(issuer)) return reportFault('issuer must be a URL such as https://host/path.');
  const { protocol, username, password, search, hash } = new URL(issuer);
  if (protocol === 'http:' && !allowPrivate)
    reportFault('issuer must begin with https://. For http:// to a private address, write allowPrivate: true.');
  else if (protocol !== 'https:' && protocol !== 'http:') reportFault('issuer must begin with https://.');
  if (username !== '' || password !== '') reportFault('issuer must not contain a user name or password.');
  if (search !== '' || hash !== '') reportFault('issuer must not contain ? or #. Remove everything after its path.');
}

function compileRule(
  { agent, index, earlierCount }: { agent: string; index: number; earlierCount: number },
  rule: RuleDeclaration,
  location: SourceLocation,
  { env, targets, diagnostics }: { env: Env; targets: CompiledTargets; diagnostics: Diagnostics },
): Rule | undefined {
  const pattern = rule.allow ?? rule.deny;
  if (pattern === undefined || (rule.allow !== undefined && rule.deny !== undefined)) {
    const got = pattern === undefined ? 'neither' : 'both';
    diagnostics.addError(location, `A rule must have either allow or deny (got ${got}).`);
    return undefined;
  }
  const verdict = rule.allow === undefined ? 'deny' : 'allow';
  if (verdict === 'deny') {
    for (const key of ['rate', 'budget', 'approve', 'voters', 'delay'] as const) {
      if (rule[key] !== undefined)
        diagnostics.addError(locateKey(location, key), `${key} is only for allow rules. Remove it from this deny.`);
    }
  }
  const facts = new FactCollector();
  const optionsAt = (...path: DocumentPath): CompileOptions =>
    buildRuleOptions(locateChild(location, ...path), targets.tools.get(pattern), diagnostics);
  const conditionOptionsAt = (...path: DocumentPath): CompileOptions =>
    buildConditionOptions(optionsAt(...path), locateChild(location, ...path), facts, targets, diagnostics);
  const compiled: Rule = {
    id: formatRuleId(agent, index, location),
    bucket: `${agent}/${pattern}#${earlierCount}`,
    verdict,
    pattern,
    covers: compileGlob(pattern),
    ...(rule.effect !== undefined && { effect: rule.effect }),
    ...(rule.when !== undefined && {
      when: compileCondition(unwrapTemplate(String(rule.when)), conditionOptionsAt('when')),
    }),
    ...(rule.rate !== undefined && { rate: parseRate(rule.rate) }),
    ...(rule.budget !== undefined && {
      budget: {
        sum: compileNumber(unwrapTemplate(String(rule.budget.sum)), optionsAt('budget', 'sum')),
        max: rule.budget.max,
        perMs: parseDurationMs(rule.budget.per),
      },
    }),
    ...(rule.approve !== undefined && {
      approve: rule.approve === 'never' ? 'never' : compileApprove(rule.approve, conditionOptionsAt('approve', 'when')),
    }),
    ...(rule.voters !== undefined && {
      voters: compileVoters(
        rule.voters,
        locateChild(location, 'voters'),
        (...path) => conditionOptionsAt('voters', ...path),
        env,
        diagnostics,
      ),
    }),
    ...(rule.delay !== undefined && { delayMs: compileDelay(rule.delay, locateChild(location, 'delay'), diagnostics) }),
  };
  const requiredFacts = facts.collect();
  return requiredFacts === undefined ? compiled : { ...compiled, requiredFacts };
}

/** The name of a rule in every decision. Agents read it, so it shows no absolute path. */
export function formatRuleId(agent: string, index: number, location: SourceLocation): string {
  const { file, line } = resolvePosition(location);
  const shown = path.isAbsolute(file) ? path.join(path.basename(path.dirname(file)), path.basename(file)) : file;
  return `${agent} rule ${index + 1} (${shown}:${line})`;
}

/** Refuses arguments that the tool's closed schema never allows: a rule that reads one would deny every call. */
function buildRuleOptions(location: SourceLocation, tool: Tool | undefined, diagnostics: Diagnostics): CompileOptions {
  const declared = tool === undefined ? undefined : readDeclaredArguments(tool.input);
  return {
    variables: RULE_VARIABLES,
    reportFault: (message, offset) => diagnostics.addError(location, message, offset),
    reportArgumentRead: (argument, offset) => {
      if (!declared?.closed || declared.names.has(argument)) return;
      const near = didYouMean(argument, declared.names);
      const known = formatList(declared.names) || 'none';
      const message = `The input schema of ${tool?.name} has no argument ${argument}.${near} Its arguments: ${known}.`;
      diagnostics.addError(location, message, offset);
    },
  };
}

/** The options of a condition, which may also read the history and the taint of the agent. */
function buildConditionOptions(
  options: CompileOptions,
  location: SourceLocation,
  facts: FactCollector,
  targets: CompiledTargets,
  diagnostics: Diagnostics,
): CompileOptions {
  return {
    ...options,
    variables: CONDITION_VARIABLES,
    reportFactQuery: (query, offset) => {
      const why = explainUselessQuery(query, targets);
      if (why === undefined) facts.add(query);
      // Without untrusted tools `tainted` is false, which is correct, so a warning is enough. A sum over no tools is a fault,
      // because a rule that limits it would allow everything.
      else if (query === 'taint') {
        facts.add(query);
        diagnostics.addWarning(location, why, offset);
      } else diagnostics.addError(location, why, offset);
    },
  };
}

function compileApprove(
  approve: Exclude<NonNullable<RuleDeclaration['approve']>, string>,
  options: CompileOptions,
): ApprovalSpec {
  return {
    ...(approve.when !== undefined && { when: compileCondition(unwrapTemplate(String(approve.when)), options) }),
    by: approve.by ?? DEFAULT_APPROVAL.by,
    quorum: approve.quorum ?? DEFAULT_APPROVAL.quorum,
    withinMs: approve.within === undefined ? DEFAULT_APPROVAL.withinMs : parseDurationMs(approve.within),
  };
}
