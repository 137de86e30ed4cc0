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
/** Conditions of a rule also see what the agent did before. */
const CONDITION_VARIABLES: readonly ScopeVariable[] = [...RULE_VARIABLES, 'history', 'tainted'];

export function compileAgent(
  declared: DeclaredEntry<AgentDeclaration>,
  env: Env,
  world: CompiledTargets,
  report: Diagnostics,
): Agent | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  return {
    name,
    keys: compileKeyDigests(value.keys ?? [], locateChild(place, 'keys'), env, report),
    ...compileJwt(value.jwt, locateChild(place, 'jwt'), env, report),
    rules: (value.rules ?? []).flatMap((rule, index) => {
      const twins = (value.rules ?? []).slice(0, index).filter((earlier) => earlier.allow === rule.allow).length;
      const compiled = compileRule({ agent: name, index, twins }, rule, locateChild(place, 'rules', index), {
        env,
        world,
        report,
      });
      return compiled === undefined ? [] : [compiled];
    }),
  };
}

export function compilePerson(
  declared: DeclaredEntry<PersonDeclaration>,
  env: Env,
  report: Diagnostics,
): Person | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  return {
    name,
    keys: compileKeyDigests(value.keys ?? [], locateChild(place, 'keys'), env, report),
    roles: value.roles ?? ['viewer'],
    groups: value.groups ?? [],
  };
}

/** Digests of bearer keys. An entry whose environment variable is empty is nobody's key. */
function compileKeyDigests(entries: readonly string[], place: SourceLocation, env: Env, report: Diagnostics): Buffer[] {
  const keys: Buffer[] = [];
  for (const [index, entry] of entries.entries()) {
    let good = true;
    const { text } = resolveSecrets(entry, env, { file: false }, (message, offset) => {
      good = false;
      report.addError(locateChild(place, index), message, offset);
    });
    if (!good || text === '' || text === 'sha256:') continue;
    const hex = /^sha256:([0-9a-f]{64})$/i.exec(text)?.[1];
    if (hex === undefined)
      report.addError(
        locateChild(place, index),
        'a key is "sha256:" and the 64 hex digits of its SHA-256; npx oncegate key new prints one',
      );
    else keys.push(Buffer.from(hex, 'hex'));
  }
  return keys;
}

/** The issuer's keys are only as good as the way they come by. An issuer or audience that is empty is nobody's. */
function compileJwt(
  jwt: AgentDeclaration['jwt'],
  place: SourceLocation,
  env: Env,
  report: Diagnostics,
): { jwt?: JwtSpec } {
  if (jwt === undefined) return {};
  const resolve = (template: string, key: string): string =>
    resolveSecrets(template, env, { file: false }, (message, offset) =>
      report.addError(locateChild(place, key), message, offset),
    ).text;
  const issuer = resolve(jwt.issuer, 'issuer');
  const allowPrivate = jwt.allowPrivate ?? false;
  if (issuer !== '')
    checkIssuer(issuer, allowPrivate, (message) => report.addError(locateChild(place, 'issuer'), message));
  const audience = resolve(jwt.audience, 'audience');
  if (issuer === '' || audience === '') return {};
  return { jwt: { issuer, audience, claims: jwt.claims ?? {}, allowPrivate } };
}

function checkIssuer(issuer: string, allowPrivate: boolean, fault: (message: string) => void): void {
  if (!URL.canParse(issuer)) return fault('the issuer is not a URL: write https://host/path');
  const { protocol, username, password, search, hash } = new URL(issuer);
  if (protocol === 'http:' && !allowPrivate)
    fault('the issuer must begin with https://; http:// is for a private address, with allowPrivate: true');
  else if (protocol !== 'https:' && protocol !== 'http:') fault('the issuer must begin with https://');
  if (username !== '' || password !== '') fault('no credentials in an issuer');
  if (search !== '' || hash !== '') fault('an issuer ends with its path: no ? and no #');
}

function compileRule(
  { agent, index, twins }: { agent: string; index: number; twins: number },
  rule: RuleDeclaration,
  place: SourceLocation,
  { env, world, report }: { env: Env; world: CompiledTargets; report: Diagnostics },
): Rule | undefined {
  const pattern = rule.allow ?? rule.deny;
  if (pattern === undefined || (rule.allow !== undefined && rule.deny !== undefined)) {
    report.addError(place, 'a rule needs exactly one of allow and deny');
    return undefined;
  }
  const verdict = rule.allow === undefined ? 'deny' : 'allow';
  if (verdict === 'deny') {
    for (const key of ['rate', 'budget', 'approve', 'voters', 'delay'] as const) {
      if (rule[key] !== undefined) report.addError(locateKey(place, key), `a deny has no ${key}: it denies`);
    }
  }
  const asking = new FactCollector();
  const site = (...path: DocumentPath): CompileOptions =>
    buildRuleOptions(locateChild(place, ...path), world.tools.get(pattern), report);
  const conditionSite = (...path: DocumentPath): CompileOptions =>
    buildConditionOptions(site(...path), locateChild(place, ...path), asking, world, report);
  const compiled: Rule = {
    id: formatRuleId(agent, index, place),
    bucket: `${agent}/${pattern}#${twins}`,
    verdict,
    pattern,
    covers: compileGlob(pattern),
    ...(rule.effect !== undefined && { effect: rule.effect }),
    ...(rule.when !== undefined && {
      when: compileCondition(unwrapTemplate(String(rule.when)), conditionSite('when')),
    }),
    ...(rule.rate !== undefined && { rate: parseRate(rule.rate) }),
    ...(rule.budget !== undefined && {
      budget: {
        sum: compileNumber(unwrapTemplate(String(rule.budget.sum)), site('budget', 'sum')),
        max: rule.budget.max,
        perMs: parseDurationMs(rule.budget.per),
      },
    }),
    ...(rule.approve !== undefined && {
      approve: rule.approve === 'never' ? 'never' : compileApprove(rule.approve, conditionSite('approve', 'when')),
    }),
    ...(rule.voters !== undefined && {
      voters: compileVoters(
        rule.voters,
        locateChild(place, 'voters'),
        (...path) => conditionSite('voters', ...path),
        env,
        report,
      ),
    }),
    ...(rule.delay !== undefined && { delayMs: compileDelay(rule.delay, locateChild(place, 'delay'), report) }),
  };
  const asks = asking.collect();
  return asks === undefined ? compiled : { ...compiled, asks };
}

/** How every decision names a rule. Agents read it: where on this machine the policies are is not for them. */
export function formatRuleId(agent: string, index: number, place: SourceLocation): string {
  const { file, line } = resolvePosition(place);
  const named = path.isAbsolute(file) ? path.join(path.basename(path.dirname(file)), path.basename(file)) : file;
  return `${agent} rule ${index + 1} (${named}:${line})`;
}

/** A rule for one tool whose schema is closed must not read what can never be there: it would deny every call. */
function buildRuleOptions(place: SourceLocation, tool: Tool | undefined, report: Diagnostics): CompileOptions {
  const declared = tool === undefined ? undefined : readDeclaredArguments(tool.input);
  return {
    sees: RULE_VARIABLES,
    fault: (message, offset) => report.addError(place, message, offset),
    reads: (argument, offset) => {
      if (!declared?.closed || declared.names.has(argument)) return;
      const has = `(it has: ${formatList(declared.names) || 'nothing'})${didYouMean(argument, declared.names)}`;
      report.addError(place, `args.${argument} is not in the tool's input schema ${has}`, offset);
    },
  };
}

/** The same for a condition, which may also ask about what the agent did before. */
function buildConditionOptions(
  site: CompileOptions,
  place: SourceLocation,
  asking: FactCollector,
  world: CompiledTargets,
  report: Diagnostics,
): CompileOptions {
  return {
    ...site,
    sees: CONDITION_VARIABLES,
    asks: (asked, offset) => {
      const why = explainUselessQuery(asked, world);
      if (why === undefined) asking.add(asked);
      // Where nothing is untrusted `tainted` is false, which is true; a sum of nothing would let everything through.
      else if (asked === 'taint') {
        asking.add(asked);
        report.addWarning(place, why, offset);
      } else report.addError(place, why, offset);
    },
  };
}

function compileApprove(
  approve: Exclude<NonNullable<RuleDeclaration['approve']>, string>,
  site: CompileOptions,
): ApprovalSpec {
  return {
    ...(approve.when !== undefined && { when: compileCondition(unwrapTemplate(String(approve.when)), site) }),
    by: approve.by ?? DEFAULT_APPROVAL.by,
    quorum: approve.quorum ?? DEFAULT_APPROVAL.quorum,
    withinMs: approve.within === undefined ? DEFAULT_APPROVAL.withinMs : parseDurationMs(approve.within),
  };
}
