import path from 'node:path';
import { milliseconds } from '../domain/duration.ts';
import type { Agent, Approve, JwtSpec, Person, Rule, Tool } from '../domain/policy.ts';
import { Asking, type World, whyNotAsked } from './asks.ts';
import { bare } from './compile-tool.ts';
import { compileDelay, compileVoters } from './compile-voters.ts';
import { DEFAULT_HOLD } from './decide.ts';
import type { Declared } from './declared.ts';
import { compileCondition, compileNumber, type Site, type Variable } from './expressions.ts';
import { at, didYouMean, keyOf, listed, locate, type Path, type Place, type Report } from './faults.ts';
import { globMatcher } from './glob.ts';
import { declaredArguments } from './input.ts';
import { type AgentFile, type PersonFile, type RuleFile, rateOf } from './schema.ts';
import { type Env, resolveSecrets } from './secrets.ts';

const SEES: readonly Variable[] = ['args', 'agent', 'tool', 'saga', 'run', 'now'];
/** Conditions of a rule also see what the agent did before. */
const CONDITION_SEES: readonly Variable[] = [...SEES, 'history', 'tainted'];

export function compileAgent(declared: Declared<AgentFile>, env: Env, world: World, report: Report): Agent | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  return {
    name,
    keys: compileKeys(value.keys ?? [], at(place, 'keys'), env, report),
    ...compileJwt(value.jwt, at(place, 'jwt'), env, report),
    rules: (value.rules ?? []).flatMap((rule, index) => {
      const twins = (value.rules ?? []).slice(0, index).filter((earlier) => earlier.allow === rule.allow).length;
      const compiled = compileRule({ agent: name, index, twins }, rule, at(place, 'rules', index), {
        env,
        world,
        report,
      });
      return compiled === undefined ? [] : [compiled];
    }),
  };
}

export function compilePerson(declared: Declared<PersonFile>, env: Env, report: Report): Person | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  return {
    name,
    keys: compileKeys(value.keys ?? [], at(place, 'keys'), env, report),
    roles: value.roles ?? ['viewer'],
    groups: value.groups ?? [],
  };
}

/** Digests of bearer keys. An entry whose environment variable is empty is nobody's key. */
function compileKeys(entries: readonly string[], place: Place, env: Env, report: Report): Buffer[] {
  const keys: Buffer[] = [];
  for (const [index, entry] of entries.entries()) {
    let good = true;
    const { text } = resolveSecrets(entry, env, { file: false }, (message, offset) => {
      good = false;
      report.fault(at(place, index), message, offset);
    });
    if (!good || text === '' || text === 'sha256:') continue;
    const hex = /^sha256:([0-9a-f]{64})$/i.exec(text)?.[1];
    if (hex === undefined)
      report.fault(
        at(place, index),
        'a key is "sha256:" and the 64 hex digits of its SHA-256; npx oncegate key new prints one',
      );
    else keys.push(Buffer.from(hex, 'hex'));
  }
  return keys;
}

/** The issuer's keys are only as good as the way they come by. An issuer or audience that is empty is nobody's. */
function compileJwt(jwt: AgentFile['jwt'], place: Place, env: Env, report: Report): { jwt?: JwtSpec } {
  if (jwt === undefined) return {};
  const resolve = (template: string, key: string): string =>
    resolveSecrets(template, env, { file: false }, (message, offset) => report.fault(at(place, key), message, offset))
      .text;
  const issuer = resolve(jwt.issuer, 'issuer');
  const allowPrivate = jwt.allowPrivate ?? false;
  if (issuer !== '') checkIssuer(issuer, allowPrivate, (message) => report.fault(at(place, 'issuer'), message));
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
  rule: RuleFile,
  place: Place,
  { env, world, report }: { env: Env; world: World; report: Report },
): Rule | undefined {
  const pattern = rule.allow ?? rule.deny;
  if (pattern === undefined || (rule.allow !== undefined && rule.deny !== undefined)) {
    report.fault(place, 'a rule needs exactly one of allow and deny');
    return undefined;
  }
  const verdict = rule.allow === undefined ? 'deny' : 'allow';
  if (verdict === 'deny') {
    for (const key of ['rate', 'budget', 'approve', 'voters', 'delay'] as const) {
      if (rule[key] !== undefined) report.fault(keyOf(place, key), `a deny has no ${key}: it denies`);
    }
  }
  const asking = new Asking();
  const site = (...path: Path): Site => ruleSite(at(place, ...path), world.tools.get(pattern), report);
  const conditionSite = (...path: Path): Site => askingSite(site(...path), at(place, ...path), asking, world, report);
  const compiled: Rule = {
    id: ruleId(agent, index, place),
    bucket: `${agent}/${pattern}#${twins}`,
    verdict,
    pattern,
    covers: globMatcher(pattern),
    ...(rule.effect !== undefined && { effect: rule.effect }),
    ...(rule.when !== undefined && { when: compileCondition(bare(String(rule.when)), conditionSite('when')) }),
    ...(rule.rate !== undefined && { rate: rateOf(rule.rate) }),
    ...(rule.budget !== undefined && {
      budget: {
        sum: compileNumber(bare(String(rule.budget.sum)), site('budget', 'sum')),
        max: rule.budget.max,
        perMs: milliseconds(rule.budget.per),
      },
    }),
    ...(rule.approve !== undefined && {
      approve: rule.approve === 'never' ? 'never' : compileApprove(rule.approve, conditionSite('approve', 'when')),
    }),
    ...(rule.voters !== undefined && {
      voters: compileVoters(
        rule.voters,
        at(place, 'voters'),
        (...path) => conditionSite('voters', ...path),
        env,
        report,
      ),
    }),
    ...(rule.delay !== undefined && { delayMs: compileDelay(rule.delay, at(place, 'delay'), report) }),
  };
  const asks = asking.all();
  return asks === undefined ? compiled : { ...compiled, asks };
}

/** How every decision names a rule. Agents read it: where on this machine the policies are is not for them. */
export function ruleId(agent: string, index: number, place: Place): string {
  const { file, line } = locate(place);
  const named = path.isAbsolute(file) ? path.join(path.basename(path.dirname(file)), path.basename(file)) : file;
  return `${agent} rule ${index + 1} (${named}:${line})`;
}

/** A rule for one tool whose schema is closed must not read what can never be there: it would deny every call. */
function ruleSite(place: Place, tool: Tool | undefined, report: Report): Site {
  const declared = tool === undefined ? undefined : declaredArguments(tool.input);
  return {
    sees: SEES,
    fault: (message, offset) => report.fault(place, message, offset),
    reads: (argument, offset) => {
      if (!declared?.closed || declared.names.has(argument)) return;
      const has = `(it has: ${listed(declared.names) || 'nothing'})${didYouMean(argument, declared.names)}`;
      report.fault(place, `args.${argument} is not in the tool's input schema ${has}`, offset);
    },
  };
}

/** The same for a condition, which may also ask about what the agent did before. */
function askingSite(site: Site, place: Place, asking: Asking, world: World, report: Report): Site {
  return {
    ...site,
    sees: CONDITION_SEES,
    asks: (asked, offset) => {
      const why = whyNotAsked(asked, world);
      if (why === undefined) asking.ask(asked);
      // Where nothing is untrusted `tainted` is false, which is true; a sum of nothing would let everything through.
      else if (asked === 'taint') {
        asking.ask(asked);
        report.warn(place, why, offset);
      } else report.fault(place, why, offset);
    },
  };
}

function compileApprove(approve: Exclude<NonNullable<RuleFile['approve']>, string>, site: Site): Approve {
  return {
    ...(approve.when !== undefined && { when: compileCondition(bare(String(approve.when)), site) }),
    by: approve.by ?? DEFAULT_HOLD.by,
    quorum: approve.quorum ?? DEFAULT_HOLD.quorum,
    withinMs: approve.within === undefined ? DEFAULT_HOLD.withinMs : milliseconds(approve.within),
  };
}
