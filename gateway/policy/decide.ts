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
 * Decides whether an agent may call a tool with these arguments. Pure, and denies by default:
 *
 *   1. any matching deny wins; a deny whose condition cannot be evaluated matches;
 *   2. else the first matching allow decides; an allow whose condition cannot be evaluated denies;
 *   3. else the call is denied.
 */
export interface DecisionInput {
  readonly args: JsonObject;
  readonly saga: string | null;
  readonly run: string | null;
  /** Unix milliseconds. */
  readonly now: number;
  /** The answers that `findRequiredFacts` lists. A rule whose answer is missing cannot be evaluated, so it denies. */
  readonly history?: History | undefined;
  readonly tainted?: boolean | undefined;
}

/** One rule and how it applies to the call. `why` is a whole sentence. */
export interface RuleTrace {
  readonly rule: Rule;
  readonly matched: boolean;
  readonly why: string;
}

export interface Explanation {
  readonly decision: PolicyDecision;
  /** Every rule of the agent, in the order of the file. */
  readonly tried: readonly RuleTrace[];
}

export type BuiltInDecision =
  | { readonly allowed: true; readonly rule: Rule }
  | { readonly allowed: false; readonly reason: string; readonly rule: Rule | undefined };

/** The approval for a write with `once: none` whose rule has no `approve`. */
export const DEFAULT_APPROVAL: ApprovalSpec = Object.freeze({ by: Object.freeze([]), quorum: 1, withinMs: 3_600_000 });

interface CandidateRules {
  readonly denies: readonly Rule[];
  readonly allows: readonly Rule[];
}

type RuleMatch = { readonly matched: boolean; readonly error?: string };
type RuleEvaluator = (rule: Rule, scope: ExpressionScope) => RuleMatch;

/** All rules share one cost budget. A rule beyond the budget cannot be evaluated, so it denies. */
export function decideCall(policies: Policies, agent: Agent, toolName: string, call: DecisionInput): PolicyDecision {
  return withSharedBudget(() => decideWith(evaluateCondition, policies, agent, toolName, call));
}

function decideWith(
  evaluate: RuleEvaluator,
  policies: Policies,
  agent: Agent,
  toolName: string,
  call: DecisionInput,
): PolicyDecision {
  const tool = policies.tools.get(toolName);
  const candidates = tool === undefined ? findCandidates(agent, toolName) : findCandidatesCached(agent, toolName);
  const scope = buildExpressionScope(agent, toolName, call);
  const verdict = decideByRulesWith(evaluate, agent, toolName, tool?.effect, candidates, scope);
  if (tool === undefined) {
    // Only an agent with an allow rule for the name learns that the tool does not exist.
    const isCovered = candidates.allows.length > 0 && verdict.rule?.verdict !== 'deny';
    const reason = isCovered ? `There is no tool ${JSON.stringify(toolName)}.` : verdict.reason;
    return isCovered
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

/** Whether two decisions about the same call are equal in every property. */
export function isSameDecision(one: PolicyDecision, other: PolicyDecision): boolean {
  const members = Object.entries(one);
  return (
    members.length === Object.keys(other).length &&
    members.every(([k, v]) => isDeepStrictEqual(other[k as keyof PolicyDecision], v))
  );
}

/** Decides about one of the gateway's own tools, which have no contract and no upstream. */
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
  // A built-in tool is not a call in the ledger, so it cannot be voted on or delayed.
  const reason = `${rule.id} has voters or a delay, which ${toolName} does not support. Allow it by a rule without them.`;
  return hasVotersOrDelay(rule) ? { allowed: false, reason, rule } : { allowed: true, rule };
}

/** Decides about a resource or prompt of an MCP server, which has no contract and is only read. */
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
  // Reading a resource or prompt is not a call in the ledger, so it cannot be held or counted.
  const isRestricted =
    rule.rate !== undefined || rule.budget !== undefined || typeof rule.approve === 'object' || hasVotersOrDelay(rule);
  return {
    allowed: !isRestricted,
    reason: isRestricted
      ? `${rule.id} has a limit, an approval, voters or a delay, which ${name} does not support. Allow it by a rule without them.`
      : '',
  };
}

export function hasVotersOrDelay({ voters, delayMs }: Rule): boolean {
  return voters !== undefined || delayMs !== undefined;
}

/** Whether the rules could allow the tool for some arguments. Lists of tools show exactly these tools. */
export function canAllowTool(
  agent: Agent,
  tool: { readonly name: string; readonly effect: 'read' | 'write' },
): boolean {
  const { denies, allows } = findCandidates(agent, tool.name);
  const fits = (rule: Rule): boolean => rule.effect === undefined || rule.effect === tool.effect;
  return !denies.some((rule) => fits(rule) && rule.when === undefined) && allows.some(fits);
}

/**
 * Explains a decision rule by rule. A rule that the decision evaluated is shown as evaluated there. The other rules are evaluated
 * here, on a cost budget of their own.
 */
export function explainDecision(policies: Policies, agent: Agent, toolName: string, call: DecisionInput): Explanation {
  const tool = policies.tools.get(toolName);
  const scope = buildExpressionScope(agent, toolName, call);
  const effect = tool?.effect ?? BUILT_IN_TOOL_EFFECTS[toolName];
  const matches = new Map<Rule, RuleMatch>();
  const evaluateAndRecord: RuleEvaluator = (rule, ruleScope) => {
    const match = evaluateCondition(rule, ruleScope);
    matches.set(rule, match);
    return match;
  };
  const decision = withSharedBudget(() => decideWith(evaluateAndRecord, policies, agent, toolName, call));
  const explainRule = (rule: Rule): RuleTrace => {
    if (!rule.covers(toolName))
      return { rule, matched: false, why: `The pattern ${rule.pattern} does not cover ${toolName}.` };
    if (rule.effect !== undefined && effect !== undefined && rule.effect !== effect)
      return { rule, matched: false, why: `The rule is for ${rule.effect}s, and ${toolName} is a ${effect}.` };
    const { matched, error } = matches.get(rule) ?? evaluateCondition(rule, scope);
    if (error !== undefined) return { rule, matched, why: `The condition cannot be evaluated: ${error}.` };
    if (!matched) return { rule, matched, why: 'The condition is false.' };
    const why =
      decision.rule === rule ? 'The rule matches and decides.' : 'The rule matches, but another rule decides.';
    return { rule, matched, why };
  };
  return { decision, tried: withSharedBudget(() => agent.rules.map(explainRule)) };
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

function decideByRules(...args: RuleDecisionArgs): RuleDecision {
  return withSharedBudget(() => decideByRulesWith(evaluateCondition, ...args));
}

function decideByRulesWith(
  evaluate: RuleEvaluator,
  ...[agent, toolName, effect, { denies, allows }, scope]: RuleDecisionArgs
): RuleDecision {
  for (const rule of denies) {
    if (!matchesEffect(rule, effect)) continue;
    const { matched, error } = evaluate(rule, scope);
    if (!matched) continue;
    const why = error === undefined ? '' : ` Its condition cannot be evaluated (${error}), so the deny applies.`;
    return { allowed: false, rule, reason: `Denied by ${rule.id}.${why}` };
  }
  for (const rule of allows) {
    if (!matchesEffect(rule, effect)) continue;
    const { matched, error } = evaluate(rule, scope);
    if (error !== undefined) {
      const reason = `Denied, because the condition of ${rule.id} cannot be evaluated: ${error}.`;
      return { allowed: false, rule, reason };
    }
    if (matched) return { allowed: true, rule, reason: '' };
  }
  return { allowed: false, rule: undefined, reason: explainNoMatch(agent, toolName, effect, allows) };
}

/** Names the arguments as the cause only for rules of the tool's effect. Rules for the other effect were not evaluated. */
function explainNoMatch(
  agent: Agent,
  toolName: string,
  effect: Tool['effect'] | undefined,
  allows: readonly Rule[],
): string {
  const none = `No rule of ${agent.name} allows ${toolName}`;
  const tried = allows.filter((rule) => matchesEffect(rule, effect));
  const others = allows.filter((rule) => !tried.includes(rule));
  const sentences = [tried.length === 0 ? `${none}.` : `${none} with these arguments; tried ${formatRuleIds(tried)}.`];
  if (others.length > 0) {
    const verb = others.length === 1 ? 'is' : 'are';
    sentences.push(`${formatRuleIds(others)} ${verb} for ${others[0]?.effect}s, and ${toolName} is a ${effect}.`);
  }
  return sentences.join(' ');
}

function formatRuleIds(rules: readonly Rule[]): string {
  return rules.map((rule) => rule.id).join(', ');
}

/** The effect of an unknown tool is undefined, and any rule may be meant for it. */
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

/**
 * The approval that a call needs. A condition that cannot be evaluated requires it. A write with `once: none` always needs one,
 * unless the rule says `approve: never`.
 */
function findRequiredApproval(tool: Tool, rule: Rule, scope: ExpressionScope): ApprovalSpec | undefined {
  const { approve } = rule;
  if (approve === 'never') return undefined;
  const isUnrepeatable = tool.effect === 'write' && tool.once.by === 'none';
  if (approve === undefined) return isUnrepeatable ? DEFAULT_APPROVAL : undefined;
  if (isUnrepeatable || approve.when === undefined) return approve;
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

/** Caches the rules that cover a tool. Call it only for tools that exist: invented names would fill the memory. */
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
