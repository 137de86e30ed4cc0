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
import { counted, span } from '../../count-words.ts';
import { jsonOption } from '../../json-option.ts';
import { nearOrAll } from '../../nearest-name.ts';
import { type Output, paint, type Style } from '../../output.ts';
import { readGoodPolicies } from '../../policies.ts';
import { NotGood, UsageError, type Verb } from '../../verb.ts';
import { explainRemotely } from './explain-remotely.ts';

export const explainVerb: Verb = {
  name: 'explain',
  summary: 'what the policies say of one call, and which rule says it',
  operands: [{ name: 'dir', optional: true }],
  options: {
    agent: { value: 'AGENT', required: true, help: 'who calls' },
    tool: { value: 'TOOL', required: true, help: 'what is called' },
    args: { value: 'JSON', help: 'with which arguments (default {})' },
    tainted: { help: 'as if it had read what strangers wrote' },
    remote: { help: 'ask the running gateway: also what it did before, and what is left of limits' },
  },
  run: async (invocation) => {
    const { out, operands, text, flag } = invocation;
    const args = jsonOption('args', text('args') ?? '{}');
    if (!isJsonObject(args)) throw new UsageError('--args must be a JSON object, such as {"amount": 100}');
    const name = text('agent') ?? '';
    if (flag('remote')) {
      if (operands.length > 0) throw new UsageError('--remote goes without a directory: the gateway has its own');
      if (flag('tainted')) throw new UsageError('--remote goes without --tainted: the gateway knows');
      return explainRemotely(invocation, { agent: name, tool: text('tool') ?? '', args });
    }
    const { policies } = await readGoodPolicies(invocation);
    const agent = policies.agents.get(name);
    if (agent === undefined) {
      const message = `there is no agent ${JSON.stringify(name)}${await nearOrAll(name, policies.agents.keys())}`;
      throw new NotGood('unknown_agent', message, { agents: [...policies.agents.keys()] });
    }
    const explained = await explanationOf(policies, agent, text('tool') ?? '', args, flag('tainted'));
    tell(out, explained);
    out.json(explained);
    return explained.outcome === 'deny' || explained.argumentFaults.length > 0 ? 1 : 0;
  },
};

interface Explained {
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
  /** The policies allow it, and the tool's schema does not. */
  readonly argumentFaults: readonly string[];
  readonly tried: readonly TriedRule[];
  readonly policyVersion: string;
  /** What the rules asked beside the call itself, and what they were told; null: nothing. */
  readonly facts: { readonly history: Record<string, number | 'unknown'>; readonly tainted: boolean | null } | null;
}

interface ExplainedVoters {
  readonly quorum: number;
  /** The verdict of a webhook is null: it is not asked here. */
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

async function explanationOf(
  policies: Policies,
  agent: Agent,
  tool: string,
  args: JsonObject,
  tainted: boolean,
): Promise<Explained> {
  const { decideBuiltIn, explainDecision: explainCall } = await import('../../../policy/decide.ts');
  const { BUILT_IN_TOOL_EFFECTS: BUILT_IN } = await import('../../../policy/built-in-tools.ts');
  const { findRequiredFacts: asksOf } = await import('../../../policy/expressions/required-facts.ts');
  const { buildHistory: pastOf } = await import('../../../policy/expressions/history-functions.ts');
  const asks = asksOf(agent, tool);
  // Without a gateway nothing is known of its past: it has none.
  const history = pastOf([], asks?.history ?? []);
  const call = { args, saga: null, run: null, now: Date.now(), history, tainted };
  const { decision, tried } = explainCall(policies, agent, tool, call);
  const isOwn = !policies.tools.has(tool) && Object.hasOwn(BUILT_IN, tool);
  const { decider, ...verdict } = isOwn ? ownVerdict(decideBuiltIn(agent, tool, call)) : verdictOf(decision, args);
  const rules = tried.map(({ rule, matched, why }): TriedRule => {
    const { id, verdict, pattern } = rule;
    return { rule: id, verdict, pattern, matched, decides: rule === decider, why };
  });
  const { version: policyVersion } = policies;
  const facts = asks === undefined ? null : { history: history.toJson(), tainted: asks.taint ? tainted : null };
  return { agent: agent.name, tool, args, ...verdict, rule: decider?.id ?? null, tried: rules, policyVersion, facts };
}

type Told = Pick<Explained, 'outcome' | 'code' | 'reason' | 'hold' | 'delayMs' | 'voters' | 'argumentFaults'> & {
  readonly decider: Rule | undefined;
};

function verdictOf(decision: PolicyDecision, args: JsonObject): Told {
  const { rule: decider } = decision;
  if (!decision.allowed) {
    return { ...NOTHING_MORE, outcome: 'deny', code: decision.code, reason: decision.reason, decider };
  }
  const { tool, rule, hold, poll } = decision;
  const isOutvoted = poll !== undefined && !canReachQuorum(poll);
  const outcome = hold === undefined && rule.delayMs === undefined ? 'allow' : 'hold';
  return {
    outcome: isOutvoted ? 'deny' : outcome,
    code: isOutvoted ? 'denied' : null,
    reason: isOutvoted ? `too few voters of ${rule.id} approve` : `allowed by ${rule.id}`,
    delayMs: rule.delayMs ?? null,
    voters: poll === undefined ? null : votersOf(poll),
    hold: hold === undefined ? null : { by: hold.by, quorum: hold.quorum, withinMs: hold.withinMs },
    argumentFaults: listFaults(tool.faults(args)),
    decider,
  };
}

const NOTHING_MORE = { hold: null, delayMs: null, voters: null, argumentFaults: [] } as const;

function votersOf({ quorum, votes, open }: VoterPoll): ExplainedVoters {
  return { quorum, of: [...votes, ...open.map(({ name }) => ({ voter: name, verdict: null, reason: null }))] };
}

/** Of a tool of the gateway itself, which has no contract. */
function ownVerdict(decision: BuiltInDecision): Told {
  const { allowed, rule: decider } = decision;
  const common = { ...NOTHING_MORE, decider };
  return allowed
    ? { ...common, outcome: 'allow', code: null, reason: `allowed by ${decision.rule.id}` }
    : { ...common, outcome: 'deny', code: 'denied', reason: decision.reason };
}

const STYLE: Readonly<Record<Explained['outcome'], Style>> = { allow: 'green', hold: 'yellow', deny: 'red' };

function tell(
  out: Output,
  { outcome, reason, code, hold, delayMs, voters, argumentFaults, tried, facts }: Explained,
): void {
  out.line(paint(STYLE[outcome], outcome), out.terminal ? `: ${reason}` : `\t${reason}`);
  if (code === 'unknown_tool') out.line('a rule covers the name, so the agent hears 404 unknown_tool');
  if (hold !== null) {
    const who = hold.by.length === 0 ? 'any approver' : hold.by.join(', ');
    out.line(`it is held for ${counted(hold.quorum, 'approval')} by ${who} within ${span(hold.withinMs)}`);
  }
  for (const question of Object.keys(facts?.history ?? {}))
    out.line(`taken as 0, as of an agent without a past: history.${question}`);
  if (facts?.tainted != null) out.line(`taken as ${facts.tainted}: tainted`);
  if (voters !== null) {
    out.line(`${voters.quorum} of ${counted(voters.of.length, 'voter')} must approve:`);
    for (const { voter, verdict, reason: why } of voters.of)
      out.line(`  ${voter}: ${verdict === null ? 'would be asked' : `${verdict}, ${why}`}`);
  }
  if (delayMs !== null)
    out.line(`it is held for ${span(delayMs)}${hold === null ? '' : ' more'}, then leaves by itself`);
  for (const fault of argumentFaults) out.line(paint('red', `but the arguments do not fit the tool: ${fault}`));
  if (!out.terminal) {
    for (const { rule, verdict, pattern, decides, why } of tried) {
      out.line([decides ? 'decides' : 'tried', `${verdict} ${pattern}`, rule, why].join('\t'));
    }
    return;
  }
  if (tried.length === 0) out.line('the agent has no rules');
  for (const { rule, verdict, pattern, decides, why } of tried) {
    out.line('');
    out.line(decides ? paint('bold', '→ ') : '  ', paint(decides ? 'bold' : undefined, `${verdict} ${pattern}`));
    out.line('    ', paint('dim', rule));
    out.line('    ', why);
  }
}
