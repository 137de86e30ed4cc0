import type { VoteChoice } from '../../../domain/approvals/vote.ts';
import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import {
  type Agent,
  type ApprovalSpec,
  listFaults,
  type Policies,
  type PolicyDecision,
  type Rule,
  type VoterPoll,
} from '../../../domain/policy.ts';
import type { BuiltInDecision } from '../../../policy/decide.ts';
import { canReachQuorum } from '../../../policy/evaluate-voters.ts';
import { parseJsonOption } from '../../json-option.ts';
import { suggestNearestOrAll } from '../../name-suggestions.ts';
import { type Output, paint, type Style } from '../../output.ts';
import { readValidPolicies } from '../../policy-directory.ts';
import { formatCount, formatDuration } from '../../quantities.ts';
import { UsageError, type Verb, VerbError } from '../../verb.ts';
import { explainRemotely } from './explain-remotely.ts';

export const explainVerb: Verb = {
  name: 'explain',
  summary: 'show which rule decides a call, and how',
  operands: [{ name: 'dir', optional: true }],
  options: {
    agent: { value: 'AGENT', required: true, help: 'the agent that calls' },
    tool: { value: 'TOOL', required: true, help: 'the tool that it calls' },
    args: { value: 'JSON', help: 'the arguments of the call (default {})' },
    tainted: { help: 'assume that the agent has read untrusted content' },
    remote: { help: 'ask the running gateway, which also knows history and limits' },
  },
  run: async (invocation) => {
    const { out, operands, text, hasFlag } = invocation;
    const args = parseJsonOption('args', text('args') ?? '{}');
    if (!isJsonObject(args)) throw new UsageError('--args must be a JSON object, such as {"amount": 100}');
    const name = text('agent') ?? '';
    if (hasFlag('remote')) {
      if (operands.length > 0) throw new UsageError('--remote takes no directory: the gateway uses its own policies');
      if (hasFlag('tainted'))
        throw new UsageError('--remote and --tainted exclude each other: the gateway knows what is tainted');
      return explainRemotely(invocation, { agent: name, tool: text('tool') ?? '', args });
    }
    const { policies } = await readValidPolicies(invocation);
    const agent = policies.agents.get(name);
    if (agent === undefined) {
      const message = `There is no agent ${JSON.stringify(name)}${await suggestNearestOrAll(name, policies.agents.keys())}`;
      throw new VerbError('unknown_agent', message, { agents: [...policies.agents.keys()] });
    }
    const explained = await buildExplanation(policies, agent, text('tool') ?? '', args, hasFlag('tainted'));
    printExplanation(out, explained);
    out.printJson(explained);
    return explained.outcome === 'deny' || explained.argumentFaults.length > 0 ? 1 : 0;
  },
};

interface Explanation {
  readonly agent: string;
  readonly tool: string;
  readonly args: JsonObject;
  readonly outcome: 'allow' | 'hold' | 'deny';
  readonly code: 'denied' | 'unknown_tool' | null;
  readonly reason: string;
  readonly rule: string | null;
  readonly hold: Pick<ApprovalSpec, 'by' | 'quorum' | 'withinMs'> | null;
  readonly delayMs: number | null;
  readonly voters: ExplainedVoters | null;
  /** Where the arguments break the schema of the tool. */
  readonly argumentFaults: readonly string[];
  readonly tried: readonly TriedRule[];
  readonly policyVersion: string;
  /** The history and taint that the rules used; null if they use neither. */
  readonly facts: { readonly history: Record<string, number | 'unknown'>; readonly tainted: boolean | null } | null;
}

interface ExplainedVoters {
  readonly quorum: number;
  /** The verdict of a webhook is null, because no webhook is asked here. */
  readonly of: readonly {
    readonly voter: string;
    readonly verdict: VoteChoice | null;
    readonly reason: string | null;
  }[];
}

interface TriedRule extends Pick<Rule, 'verdict' | 'pattern'> {
  readonly rule: string;
  readonly matched: boolean;
  readonly decides: boolean;
  readonly why: string;
}

async function buildExplanation(
  policies: Policies,
  agent: Agent,
  tool: string,
  args: JsonObject,
  tainted: boolean,
): Promise<Explanation> {
  const { decideBuiltIn, explainDecision } = await import('../../../policy/decide.ts');
  const { BUILT_IN_TOOL_EFFECTS } = await import('../../../policy/built-in-tools.ts');
  const { findRequiredFacts } = await import('../../../policy/expressions/required-facts.ts');
  const { buildHistory } = await import('../../../policy/expressions/history-functions.ts');
  const required = findRequiredFacts(agent, tool);
  // Without a gateway the history of the agent is unknown; it counts as empty.
  const history = buildHistory([], required?.history ?? []);
  const call = { args, saga: null, run: null, now: Date.now(), history, tainted };
  const { decision, tried } = explainDecision(policies, agent, tool, call);
  const isBuiltIn = !policies.tools.has(tool) && Object.hasOwn(BUILT_IN_TOOL_EFFECTS, tool);
  const { decider, ...verdict } = isBuiltIn
    ? explainBuiltInDecision(decideBuiltIn(agent, tool, call))
    : explainToolDecision(decision, args);
  const rules = tried.map(({ rule, matched, why }): TriedRule => {
    const { id, verdict, pattern } = rule;
    return { rule: id, verdict, pattern, matched, decides: rule === decider, why };
  });
  const { version: policyVersion } = policies;
  const facts = required === undefined ? null : { history: history.toJson(), tainted: required.taint ? tainted : null };
  return { agent: agent.name, tool, args, ...verdict, rule: decider?.id ?? null, tried: rules, policyVersion, facts };
}

type ExplainedDecision = Pick<
  Explanation,
  'outcome' | 'code' | 'reason' | 'hold' | 'delayMs' | 'voters' | 'argumentFaults'
> & {
  readonly decider: Rule | undefined;
};

function explainToolDecision(decision: PolicyDecision, args: JsonObject): ExplainedDecision {
  const { rule: decider } = decision;
  if (!decision.allowed) {
    return { ...NO_DETAILS, outcome: 'deny', code: decision.code, reason: decision.reason, decider };
  }
  const { tool, rule, hold, poll } = decision;
  const isOutvoted = poll !== undefined && !canReachQuorum(poll);
  const outcome = hold === undefined && rule.delayMs === undefined ? 'allow' : 'hold';
  return {
    outcome: isOutvoted ? 'deny' : outcome,
    code: isOutvoted ? 'denied' : null,
    reason: isOutvoted ? `Too few voters of ${rule.id} approve.` : `Allowed by ${rule.id}.`,
    delayMs: rule.delayMs ?? null,
    voters: poll === undefined ? null : listVoters(poll),
    hold: hold === undefined ? null : { by: hold.by, quorum: hold.quorum, withinMs: hold.withinMs },
    argumentFaults: listFaults(tool.faults(args)),
    decider,
  };
}

const NO_DETAILS = { hold: null, delayMs: null, voters: null, argumentFaults: [] } as const;

function listVoters({ quorum, votes, open }: VoterPoll): ExplainedVoters {
  return { quorum, of: [...votes, ...open.map(({ name }) => ({ voter: name, verdict: null, reason: null }))] };
}

/** A built-in tool of the gateway has no contract. */
function explainBuiltInDecision(decision: BuiltInDecision): ExplainedDecision {
  const { allowed, rule: decider } = decision;
  const common = { ...NO_DETAILS, decider };
  return allowed
    ? { ...common, outcome: 'allow', code: null, reason: `Allowed by ${decision.rule.id}.` }
    : { ...common, outcome: 'deny', code: 'denied', reason: decision.reason };
}

const OUTCOME_STYLES: Readonly<Record<Explanation['outcome'], Style>> = { allow: 'green', hold: 'yellow', deny: 'red' };

function printExplanation(
  out: Output,
  { outcome, reason, code, hold, delayMs, voters, argumentFaults, tried, facts }: Explanation,
): void {
  out.printHanging([paint(OUTCOME_STYLES[outcome], outcome), out.isTerminal ? ': ' : '\t'], reason);
  if (code === 'unknown_tool') out.printLine('A rule covers the name, so the agent gets 404 unknown_tool.');
  if (hold !== null) {
    const approvers = hold.by.length === 0 ? 'any approver' : hold.by.join(', ');
    out.printLine(
      `It waits for ${formatCount(hold.quorum, 'approval')} by ${approvers} within ${formatDuration(hold.withinMs)}.`,
    );
  }
  for (const expression of Object.keys(facts?.history ?? {})) out.printLine(`Assumed: history.${expression} is 0.`);
  if (facts?.tainted != null) out.printLine(`Assumed: tainted is ${facts.tainted}.`);
  if (voters !== null) {
    out.printLine(`${voters.quorum} of ${formatCount(voters.of.length, 'voter')} must approve:`);
    for (const { voter, verdict, reason: why } of voters.of)
      out.printLine(`  ${voter}: ${verdict === null ? 'would be asked' : `${verdict}, ${why}`}`);
  }
  if (delayMs !== null)
    out.printLine(
      `It waits ${formatDuration(delayMs)}${hold === null ? '' : ' more'}, and is then sent automatically.`,
    );
  for (const fault of argumentFaults)
    out.printLine(paint('red', `The arguments do not fit the schema of the tool: ${fault}`));
  if (!out.isTerminal) {
    for (const { rule, verdict, pattern, decides, why } of tried) {
      out.printLine([decides ? 'decides' : 'tried', `${verdict} ${pattern}`, rule, why].join('\t'));
    }
    return;
  }
  if (tried.length === 0) out.printLine('The agent has no rules.');
  for (const { rule, verdict, pattern, decides, why } of tried) {
    out.printLine('');
    out.printLine(decides ? paint('bold', '→ ') : '  ', paint(decides ? 'bold' : undefined, `${verdict} ${pattern}`));
    out.printHanging(['    '], paint('dim', rule));
    out.printHanging(['    '], why);
  }
}
