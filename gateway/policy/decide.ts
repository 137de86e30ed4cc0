import { isDeepStrictEqual } from 'node:util';
import type { History } from '../domain/calls/history.ts';
import type { JsonObject } from '../domain/json.ts';
import {
  type Agent,
  type ApprovalSpec,
  ExpressionError,
  type ExpressionScope,
  type Policies,
  type PolicyDecision,
  type Rule,
  type Tool,
} from '../domain/policy.ts';
import { BUILT_IN_TOOL_EFFECTS } from './built-in-tools.ts';
import { evaluateVoters } from './evaluate-voters.ts';
import { withSharedBudget } from './expressions/expression-cost.ts';

/**
 * May this agent call this tool with these arguments? Pure, and closed by default:
 *
 *   1. any matching deny wins (one whose condition cannot be evaluated matches);
 *   2. else the first matching allow decides (one whose condition cannot be evaluated denies);
 *   3. else nothing allows it.
 */
export interface DecisionInput {
  readonly args: JsonObject;
  readonly saga: string | null;
  readonly run: string | null;
  /** Unix milliseconds. */
  readonly now: number;
  /** What `asksOf` says must be known. A rule that asks for what is missing here cannot tell, and so denies. */
  readonly history?: History | undefined;
  readonly tainted?: boolean | undefined;
}

/** One rule that was looked at. */
export interface RuleTrace {
  readonly rule: Rule;
  readonly matched: boolean;
  readonly why: string;
}

export interface Explanation {
  readonly decision: PolicyDecision;
  /** Every rule of the agent in written order. */
  readonly tried: readonly RuleTrace[];
}

export type BuiltInDecision =
  | { readonly allowed: true; readonly rule: Rule }
  | { readonly allowed: false; readonly reason: string; readonly rule: Rule | undefined };

/** The hold of a write that nothing makes repeatable, when its rule does not say otherwise. */
export const DEFAULT_APPROVAL: ApprovalSpec = Object.freeze({ by: Object.freeze([]), quorum: 1, withinMs: 3_600_000 });

interface CandidateRules {
  readonly denies: readonly Rule[];
  readonly allows: readonly Rule[];
}

type RuleMatch = { readonly matched: boolean; readonly error?: string };
type RuleEvaluator = (rule: Rule, scope: ExpressionScope) => RuleMatch;

/** A rule that cannot be evaluated any more, because those before it cost all there was, denies like any that cannot. */
export function decideCall(policies: Policies, agent: Agent, toolName: string, call: DecisionInput): PolicyDecision {
  return withSharedBudget(() => decideWith(evaluateCondition, policies, agent, toolName, call));
}

function decideWith(
  by: RuleEvaluator,
  policies: Policies,
  agent: Agent,
  toolName: string,
  call: DecisionInput,
): PolicyDecision {
  const tool = policies.tools.get(toolName);
  const candidates = tool === undefined ? findCandidates(agent, toolName) : findCandidatesCached(agent, toolName);
  const scope = buildExpressionScope(agent, toolName, call);
  const verdict = decideByRulesWith(by, agent, toolName, tool?.effect, candidates, scope);
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
  return {
    allowed: true,
    tool,
    rule,
    hold: findRequiredApproval(tool, rule, scope),
    poll: evaluateVoters(rule, scope),
  };
}

/** Whether two decisions about the same call come to the same. Every member counts, whatever they are. */
export function isSameDecision(one: PolicyDecision, other: PolicyDecision): boolean {
  const members = Object.entries(one);
  return (
    members.length === Object.keys(other).length &&
    members.every(([k, v]) => isDeepStrictEqual(other[k as keyof PolicyDecision], v))
  );
}

/** The gateway's own tools have no contract and no upstream, only a rule that allows them or none. */
export function decideBuiltIn(agent: Agent, toolName: string, call: DecisionInput): BuiltInDecision {
  const scope = buildExpressionScope(agent, toolName, call);
  const verdict = decideByRules(
    agent,
    toolName,
    BUILT_IN_TOOL_EFFECTS[toolName],
    findCandidates(agent, toolName),
    scope,
  );
  if (!verdict.allowed) return { allowed: false, reason: verdict.reason, rule: verdict.rule };
  const { rule } = verdict;
  // It is no call that could be voted on or wait; a rule that wants that does not allow it.
  return hasVotersOrDelay(rule)
    ? { allowed: false, reason: `${rule.id} has voters or a delay: ${toolName} needs a rule without`, rule }
    : { allowed: true, rule };
}

/** What an MCP server offers beside tools has no contract either, and is only ever read. */
export function decideMcpRead(agent: Agent, name: string, call: DecisionInput): { allowed: boolean; reason: string } {
  const verdict = decideByRules(
    agent,
    name,
    'read',
    findCandidates(agent, name),
    buildExpressionScope(agent, name, call),
  );
  if (!verdict.allowed) return { allowed: false, reason: verdict.reason };
  const { rule } = verdict;
  // Such a reading is no call: it cannot be held or counted, so a rule that wants that does not allow it.
  const isBound =
    rule.rate !== undefined || rule.budget !== undefined || typeof rule.approve === 'object' || hasVotersOrDelay(rule);
  return {
    allowed: !isBound,
    reason: isBound ? `${rule.id} holds or counts what it allows; ${name} is only read` : '',
  };
}

/** Whether a rule wants voters, or time, before what it allows is done. */
export function hasVotersOrDelay({ voters, delayMs }: Rule): boolean {
  return voters !== undefined || delayMs !== undefined;
}

/** Whether some rule could allow the tool for some arguments: what a list of tools shows. */
export function canAllowTool(
  agent: Agent,
  tool: { readonly name: string; readonly effect: 'read' | 'write' },
): boolean {
  const { denies, allows } = findCandidates(agent, tool.name);
  const fits = (rule: Rule): boolean => rule.effect === undefined || rule.effect === tool.effect;
  return !denies.some((rule) => fits(rule) && rule.when === undefined) && allows.some(fits);
}

/**
 * What the decision found of a rule is what is told of it. Those that it did not come to are evaluated for the telling, on a purse
 * of their own.
 */
export function explainDecision(policies: Policies, agent: Agent, toolName: string, call: DecisionInput): Explanation {
  const tool = policies.tools.get(toolName);
  const scope = buildExpressionScope(agent, toolName, call);
  const effect = tool?.effect ?? BUILT_IN_TOOL_EFFECTS[toolName];
  const found = new Map<Rule, RuleMatch>();
  const noting: RuleEvaluator = (rule, of) => {
    const match = evaluateCondition(rule, of);
    found.set(rule, match);
    return match;
  };
  const decision = withSharedBudget(() => decideWith(noting, policies, agent, toolName, call));
  const attempt = (rule: Rule): RuleTrace => {
    if (!rule.covers(toolName)) return { rule, matched: false, why: `${rule.pattern} does not cover ${toolName}` };
    if (rule.effect !== undefined && effect !== undefined && rule.effect !== effect) {
      return { rule, matched: false, why: `it is for ${rule.effect}s, and ${toolName} is a ${effect}` };
    }
    const { matched, error } = found.get(rule) ?? evaluateCondition(rule, scope);
    if (error !== undefined) return { rule, matched, why: `its condition cannot be evaluated: ${error}` };
    if (!matched) return { rule, matched, why: 'its condition is false' };
    const decided = decision.rule === rule;
    return { rule, matched, why: decided ? 'it matches, and decides' : 'it matches, but another rule decides' };
  };
  return { decision, tried: withSharedBudget(() => agent.rules.map(attempt)) };
}

type RuleDecision =
  | { readonly allowed: true; readonly rule: Rule; readonly reason: string }
  | { readonly allowed: false; readonly rule: Rule | undefined; readonly reason: string };

type RuleDecisionArgs = readonly [
  agent: Agent,
  toolName: string,
  effect: Tool['effect'] | undefined,
  candidates: CandidateRules,
  scope: ExpressionScope,
];

function decideByRules(...judged: RuleDecisionArgs): RuleDecision {
  return withSharedBudget(() => decideByRulesWith(evaluateCondition, ...judged));
}

function decideByRulesWith(
  by: RuleEvaluator,
  ...[agent, toolName, effect, { denies, allows }, scope]: RuleDecisionArgs
): RuleDecision {
  for (const rule of denies) {
    if (!matchesEffect(rule, effect)) continue;
    const { matched, error } = by(rule, scope);
    if (!matched) continue;
    const why = error === undefined ? '' : `: its condition cannot be evaluated (${error}), so it counts`;
    return { allowed: false, rule, reason: `denied by ${rule.id}${why}` };
  }
  for (const rule of allows) {
    if (!matchesEffect(rule, effect)) continue;
    const { matched, error } = by(rule, scope);
    if (error !== undefined) {
      return { allowed: false, rule, reason: `${rule.id} cannot tell whether it allows this: ${error}` };
    }
    if (matched) return { allowed: true, rule, reason: '' };
  }
  return { allowed: false, rule: undefined, reason: explainNoMatch(agent, toolName, effect, allows) };
}

/** Only what a rule's condition judged has to do with the arguments; a rule for the other effect judged nothing. */
function explainNoMatch(
  agent: Agent,
  toolName: string,
  effect: Tool['effect'] | undefined,
  allows: readonly Rule[],
): string {
  const none = `no rule of ${agent.name} allows ${toolName}`;
  const tried = allows.filter((rule) => matchesEffect(rule, effect));
  const others = allows.filter((rule) => !tried.includes(rule));
  const why = [
    ...(tried.length === 0 ? [] : [`tried ${formatRuleIds(tried)}`]),
    ...(others.length === 0
      ? []
      : [
          `${formatRuleIds(others)} ${others.length === 1 ? 'is' : 'are'} for ${others[0]?.effect}s, and this is a ${effect}`,
        ]),
  ];
  return [tried.length === 0 ? none : `${none} with these arguments`, ...why].join('; ');
}

function formatRuleIds(rules: readonly Rule[]): string {
  return rules.map((rule) => rule.id).join(', ');
}

/** Of an unknown tool nobody knows the effect: a rule for reads may be meant. */
function matchesEffect(rule: Rule, effect: Tool['effect'] | undefined): boolean {
  return rule.effect === undefined || effect === undefined || rule.effect === effect;
}

function evaluateCondition(rule: Rule, scope: ExpressionScope): RuleMatch {
  if (rule.when === undefined) return MATCHED;
  try {
    return rule.when(scope) ? MATCHED : NOT_MATCHED;
  } catch (error) {
    return { matched: rule.verdict === 'deny', error: describeError(error) };
  }
}

const MATCHED: RuleMatch = { matched: true };
const NOT_MATCHED: RuleMatch = { matched: false };

function describeError(error: unknown): string {
  return error instanceof ExpressionError ? error.message : 'unexpected error';
}

/** A rule's approval, asked for when its condition says so or cannot say; and always for a write that nothing repeats. */
function findRequiredApproval(tool: Tool, rule: Rule, scope: ExpressionScope): ApprovalSpec | undefined {
  const { approve } = rule;
  if (approve === 'never') return undefined;
  const unrepeatable = tool.effect === 'write' && tool.once.by === 'none';
  if (approve === undefined) return unrepeatable ? DEFAULT_APPROVAL : undefined;
  if (unrepeatable || approve.when === undefined) return approve;
  try {
    return approve.when(scope) ? approve : undefined;
  } catch {
    return approve;
  }
}

function buildExpressionScope(agent: Agent, tool: string, call: DecisionInput): ExpressionScope {
  const { args, saga, run, now, history, tainted } = call;
  const plain = { args, agent: agent.name, tool, saga, run, now };
  if (history === undefined && tainted === undefined) return plain;
  return { ...plain, ...(history === undefined ? {} : { history }), ...(tainted === undefined ? {} : { tainted }) };
}

const candidatesByAgent = new WeakMap<Agent, Map<string, CandidateRules>>();

/** For tools that exist only: a name that an agent invents must not fill memory. */
function findCandidatesCached(agent: Agent, toolName: string): CandidateRules {
  let byTool = candidatesByAgent.get(agent);
  if (byTool === undefined) {
    byTool = new Map();
    candidatesByAgent.set(agent, byTool);
  }
  let candidates = byTool.get(toolName);
  if (candidates === undefined) {
    candidates = findCandidates(agent, toolName);
    byTool.set(toolName, candidates);
  }
  return candidates;
}

function findCandidates(agent: Agent, toolName: string): CandidateRules {
  const covering = agent.rules.filter((rule) => rule.covers(toolName));
  return {
    denies: covering.filter((rule) => rule.verdict === 'deny'),
    allows: covering.filter((rule) => rule.verdict === 'allow'),
  };
}
