import { isDeepStrictEqual } from 'node:util';
import type { JsonObject } from '../domain/json.ts';
import type { Past } from '../domain/past.ts';
import {
  type Agent,
  type Approve,
  type Decision,
  ExpressionError,
  type Policies,
  type Rule,
  type Scope,
  type Tool,
} from '../domain/policy.ts';
import { BUILT_IN } from './built-in.ts';
import { onOnePurse } from './metering.ts';
import { openPoll } from './poll.ts';

/**
 * May this agent call this tool with these arguments? Pure, and closed by default:
 *
 *   1. any matching deny wins (one whose condition cannot be evaluated matches);
 *   2. else the first matching allow decides (one whose condition cannot be evaluated denies);
 *   3. else nothing allows it.
 */
export interface CallScope {
  readonly args: JsonObject;
  readonly saga: string | null;
  readonly run: string | null;
  /** Unix milliseconds. */
  readonly now: number;
  /** What `asksOf` says must be known. A rule that asks for what is missing here cannot tell, and so denies. */
  readonly history?: Past | undefined;
  readonly tainted?: boolean | undefined;
}

/** One rule that was looked at. */
export interface Tried {
  readonly rule: Rule;
  readonly matched: boolean;
  readonly why: string;
}

export interface Explanation {
  readonly decision: Decision;
  /** Every rule of the agent in written order. */
  readonly tried: readonly Tried[];
}

export type BuiltInDecision =
  | { readonly allowed: true; readonly rule: Rule }
  | { readonly allowed: false; readonly reason: string; readonly rule: Rule | undefined };

/** The hold of a write that nothing makes repeatable, when its rule does not say otherwise. */
export const DEFAULT_HOLD: Approve = Object.freeze({ by: Object.freeze([]), quorum: 1, withinMs: 3_600_000 });

interface Candidates {
  readonly denies: readonly Rule[];
  readonly allows: readonly Rule[];
}

type Match = { readonly matched: boolean; readonly error?: string };
type Evaluate = (rule: Rule, scope: Scope) => Match;

/** A rule that cannot be evaluated any more, because those before it cost all there was, denies like any that cannot. */
export function decide(policies: Policies, agent: Agent, toolName: string, call: CallScope): Decision {
  return onOnePurse(() => decideBy(evaluate, policies, agent, toolName, call));
}

function decideBy(by: Evaluate, policies: Policies, agent: Agent, toolName: string, call: CallScope): Decision {
  const tool = policies.tools.get(toolName);
  const candidates = tool === undefined ? candidatesOf(agent, toolName) : cachedCandidates(agent, toolName);
  const scope = scopeOf(agent, toolName, call);
  const verdict = verdictOf(by, agent, toolName, tool?.effect, candidates, scope);
  if (tool === undefined) {
    // Only whoever a rule lets near the name may learn that nothing has it.
    const covered = candidates.allows.length > 0 && !(verdict.rule?.verdict === 'deny');
    const reason = covered ? `there is no tool ${JSON.stringify(toolName)}` : verdict.reason;
    return covered
      ? { allowed: false, code: 'unknown_tool', reason, rule: candidates.allows[0] }
      : { allowed: false, code: 'denied', reason, rule: verdict.rule };
  }
  if (!verdict.allowed) return { allowed: false, code: 'denied', reason: verdict.reason, rule: verdict.rule };
  const { rule } = verdict;
  return { allowed: true, tool, rule, hold: holdOf(tool, rule, scope), poll: openPoll(rule, scope) };
}

/** Whether two decisions about the same call come to the same. Every member counts, whatever they are. */
export function isSameDecision(one: Decision, other: Decision): boolean {
  const members = Object.entries(one);
  return (
    members.length === Object.keys(other).length &&
    members.every(([k, v]) => isDeepStrictEqual(other[k as keyof Decision], v))
  );
}

/** The gateway's own tools have no contract and no upstream, only a rule that allows them or none. */
export function decideBuiltIn(agent: Agent, toolName: string, call: CallScope): BuiltInDecision {
  const scope = scopeOf(agent, toolName, call);
  const verdict = judge(agent, toolName, BUILT_IN[toolName], candidatesOf(agent, toolName), scope);
  if (!verdict.allowed) return { allowed: false, reason: verdict.reason, rule: verdict.rule };
  const { rule } = verdict;
  // It is no call that could be voted on or wait; a rule that wants that does not allow it.
  return isWary(rule)
    ? { allowed: false, reason: `${rule.id} has voters or a delay: ${toolName} needs a rule without`, rule }
    : { allowed: true, rule };
}

/** What an MCP server offers beside tools has no contract either, and is only ever read. */
export function decideOffer(agent: Agent, name: string, call: CallScope): { allowed: boolean; reason: string } {
  const verdict = judge(agent, name, 'read', candidatesOf(agent, name), scopeOf(agent, name, call));
  if (!verdict.allowed) return { allowed: false, reason: verdict.reason };
  const { rule } = verdict;
  // Such a reading is no call: it cannot be held or counted, so a rule that wants that does not allow it.
  const isBound =
    rule.rate !== undefined || rule.budget !== undefined || typeof rule.approve === 'object' || isWary(rule);
  return {
    allowed: !isBound,
    reason: isBound ? `${rule.id} holds or counts what it allows; ${name} is only read` : '',
  };
}

/** Whether a rule wants voters, or time, before what it allows is done. */
export function isWary({ voters, delayMs }: Rule): boolean {
  return voters !== undefined || delayMs !== undefined;
}

/** Whether some rule could allow the tool for some arguments: what a list of tools shows. */
export function coversByName(
  agent: Agent,
  tool: { readonly name: string; readonly effect: 'read' | 'write' },
): boolean {
  const { denies, allows } = candidatesOf(agent, tool.name);
  const fits = (rule: Rule): boolean => rule.effect === undefined || rule.effect === tool.effect;
  return !denies.some((rule) => fits(rule) && rule.when === undefined) && allows.some(fits);
}

/**
 * What the decision found of a rule is what is told of it. Those that it did not come to are evaluated for the telling, on a purse
 * of their own.
 */
export function explain(policies: Policies, agent: Agent, toolName: string, call: CallScope): Explanation {
  const tool = policies.tools.get(toolName);
  const scope = scopeOf(agent, toolName, call);
  const effect = tool?.effect ?? BUILT_IN[toolName];
  const found = new Map<Rule, Match>();
  const noting: Evaluate = (rule, of) => {
    const match = evaluate(rule, of);
    found.set(rule, match);
    return match;
  };
  const decision = onOnePurse(() => decideBy(noting, policies, agent, toolName, call));
  const attempt = (rule: Rule): Tried => {
    if (!rule.covers(toolName)) return { rule, matched: false, why: `${rule.pattern} does not cover ${toolName}` };
    if (rule.effect !== undefined && effect !== undefined && rule.effect !== effect) {
      return { rule, matched: false, why: `it is for ${rule.effect}s, and ${toolName} is a ${effect}` };
    }
    const { matched, error } = found.get(rule) ?? evaluate(rule, scope);
    if (error !== undefined) return { rule, matched, why: `its condition cannot be evaluated: ${error}` };
    if (!matched) return { rule, matched, why: 'its condition is false' };
    const decided = decision.rule === rule;
    return { rule, matched, why: decided ? 'it matches, and decides' : 'it matches, but another rule decides' };
  };
  return { decision, tried: onOnePurse(() => agent.rules.map(attempt)) };
}

type Verdict =
  | { readonly allowed: true; readonly rule: Rule; readonly reason: string }
  | { readonly allowed: false; readonly rule: Rule | undefined; readonly reason: string };

type Judged = readonly [
  agent: Agent,
  toolName: string,
  effect: Tool['effect'] | undefined,
  candidates: Candidates,
  scope: Scope,
];

function judge(...judged: Judged): Verdict {
  return onOnePurse(() => verdictOf(evaluate, ...judged));
}

function verdictOf(by: Evaluate, ...[agent, toolName, effect, { denies, allows }, scope]: Judged): Verdict {
  for (const rule of denies) {
    if (!fits(rule, effect)) continue;
    const { matched, error } = by(rule, scope);
    if (!matched) continue;
    const why = error === undefined ? '' : `: its condition cannot be evaluated (${error}), so it counts`;
    return { allowed: false, rule, reason: `denied by ${rule.id}${why}` };
  }
  for (const rule of allows) {
    if (!fits(rule, effect)) continue;
    const { matched, error } = by(rule, scope);
    if (error !== undefined) {
      return { allowed: false, rule, reason: `${rule.id} cannot tell whether it allows this: ${error}` };
    }
    if (matched) return { allowed: true, rule, reason: '' };
  }
  return { allowed: false, rule: undefined, reason: whyNone(agent, toolName, effect, allows) };
}

/** Only what a rule's condition judged has to do with the arguments; a rule for the other effect judged nothing. */
function whyNone(agent: Agent, toolName: string, effect: Tool['effect'] | undefined, allows: readonly Rule[]): string {
  const none = `no rule of ${agent.name} allows ${toolName}`;
  const tried = allows.filter((rule) => fits(rule, effect));
  const others = allows.filter((rule) => !tried.includes(rule));
  const why = [
    ...(tried.length === 0 ? [] : [`tried ${ids(tried)}`]),
    ...(others.length === 0
      ? []
      : [`${ids(others)} ${others.length === 1 ? 'is' : 'are'} for ${others[0]?.effect}s, and this is a ${effect}`]),
  ];
  return [tried.length === 0 ? none : `${none} with these arguments`, ...why].join('; ');
}

function ids(rules: readonly Rule[]): string {
  return rules.map((rule) => rule.id).join(', ');
}

/** Of an unknown tool nobody knows the effect: a rule for reads may be meant. */
function fits(rule: Rule, effect: Tool['effect'] | undefined): boolean {
  return rule.effect === undefined || effect === undefined || rule.effect === effect;
}

function evaluate(rule: Rule, scope: Scope): Match {
  if (rule.when === undefined) return MATCHED;
  try {
    return rule.when(scope) ? MATCHED : NOT_MATCHED;
  } catch (error) {
    return { matched: rule.verdict === 'deny', error: messageOf(error) };
  }
}

const MATCHED: Match = { matched: true };
const NOT_MATCHED: Match = { matched: false };

function messageOf(error: unknown): string {
  return error instanceof ExpressionError ? error.message : 'unexpected error';
}

/** A rule's approval, asked for when its condition says so or cannot say; and always for a write that nothing repeats. */
function holdOf(tool: Tool, rule: Rule, scope: Scope): Approve | undefined {
  const { approve } = rule;
  if (approve === 'never') return undefined;
  const unrepeatable = tool.effect === 'write' && tool.once.by === 'none';
  if (approve === undefined) return unrepeatable ? DEFAULT_HOLD : undefined;
  if (unrepeatable || approve.when === undefined) return approve;
  try {
    return approve.when(scope) ? approve : undefined;
  } catch {
    return approve;
  }
}

function scopeOf(agent: Agent, tool: string, call: CallScope): Scope {
  const { args, saga, run, now, history, tainted } = call;
  const plain = { args, agent: agent.name, tool, saga, run, now };
  if (history === undefined && tainted === undefined) return plain;
  return { ...plain, ...(history === undefined ? {} : { history }), ...(tainted === undefined ? {} : { tainted }) };
}

const cache = new WeakMap<Agent, Map<string, Candidates>>();

/** For tools that exist only: a name that an agent invents must not fill memory. */
function cachedCandidates(agent: Agent, toolName: string): Candidates {
  let byTool = cache.get(agent);
  if (byTool === undefined) {
    byTool = new Map();
    cache.set(agent, byTool);
  }
  let candidates = byTool.get(toolName);
  if (candidates === undefined) {
    candidates = candidatesOf(agent, toolName);
    byTool.set(toolName, candidates);
  }
  return candidates;
}

function candidatesOf(agent: Agent, toolName: string): Candidates {
  const covering = agent.rules.filter((rule) => rule.covers(toolName));
  return {
    denies: covering.filter((rule) => rule.verdict === 'deny'),
    allows: covering.filter((rule) => rule.verdict === 'allow'),
  };
}
