import { hasQuorum, type Vote } from '../domain/approvals/vote.ts';
import { parseDurationMs } from '../domain/duration.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import { listFaults, type Policies, type PolicyDecision, type VoterPoll } from '../domain/policy.ts';
import { decideCall } from './decide.ts';
import { buildHistory, type HistoryCall } from './expressions/history-functions.ts';
import { findRequiredFacts } from './expressions/required-facts.ts';
import { type Diagnostics, didYouMean, formatList, resolvePosition, type SourceFile } from './faults.ts';
import { type PolicyTestFile, testFileSchema } from './policy-file-schema.ts';
import { reportZodIssues } from './zod-issues.ts';

/**
 * Policy tests, `*_test.yaml` beside the policies:
 *
 *     tests:
 *       - name: a small charge goes through
 *         agent: billing-bot
 *         tool: payments.charge
 *         args: { amount: 100, currency: usd }
 *         votes: { reviewer: approve }   # optional: the votes of webhooks; a webhook that is not named abstains
 *         expect: allow              # allow | deny | hold; a delay is a hold
 *         rule: rule 1               # optional: text that the name of the rule or the reason must contain
 *         history: [{ tool: payments.charge, args: { amount: 5 }, ago: 3m }]   # optional: earlier calls of the agent
 *         tainted: true              # optional: the agent is tainted
 */
export type PolicyTest = PolicyTestFile['tests'][number] & { readonly file: string; readonly line: number };

export interface PolicyTestResult {
  readonly test: PolicyTest;
  readonly passed: boolean;
  readonly got: 'allow' | 'deny' | 'hold';
  /** The reason for `got`, as a sentence. */
  readonly because: string;
  /** Why the test failed, as sentences; empty when it passed. */
  readonly faults: readonly string[];
}

export function collectPolicyTests(sources: readonly SourceFile[], diagnostics: Diagnostics): PolicyTest[] {
  return sources.flatMap((source) => {
    if (source.value === null || source.value === undefined) return [];
    const parsed = testFileSchema.safeParse(source.value);
    if (!parsed.success) {
      reportZodIssues(diagnostics, { source, path: [] }, source.value, testFileSchema, parsed.error.issues);
      return [];
    }
    return parsed.data.tests.map((test, index) => {
      const { file, line } = resolvePosition({ source, path: ['tests', index] });
      return { ...test, file, line };
    });
  });
}

export function runPolicyTests(policies: Policies, tests: readonly PolicyTest[]): PolicyTestResult[] {
  return tests.map((test) => runPolicyTest(policies, test));
}

function runPolicyTest(policies: Policies, test: PolicyTest): PolicyTestResult {
  const agent = policies.agents.get(test.agent);
  if (agent === undefined) {
    const because = `There is no agent ${JSON.stringify(test.agent)}.${didYouMean(test.agent, policies.agents.keys())}`;
    return { test, passed: false, got: 'deny', because, faults: [because] };
  }
  const args = (test.args ?? {}) as JsonObject;
  const earlierCalls = (test.history ?? []).map(
    ({ tool, args: callArgs, ago }): HistoryCall => ({
      tool,
      args: (callArgs ?? {}) as Json,
      agoMs: parseDurationMs(ago),
    }),
  );
  const decision = decideCall(policies, agent, test.tool, {
    args,
    saga: test.saga ?? null,
    run: test.run ?? null,
    now: test.now === undefined ? Date.now() : Date.parse(test.now),
    history: buildHistory(earlierCalls, findRequiredFacts(agent, test.tool)?.history ?? []),
    tainted: test.tainted ?? false,
  });
  const votes = decision.allowed ? collectVotes(test, decision.poll) : [];
  const got = classifyDecision(decision, votes);
  const because = explainResult(decision, votes);
  const faults: string[] = findUnexpectedVotes(test, decision);
  if (got !== test.expect) faults.push(`Expected ${test.expect}, got ${got}. ${because}`);
  if (test.rule !== undefined && !because.includes(test.rule)) {
    faults.push(`Expected ${JSON.stringify(test.rule)} in the name of the rule or in the reason. Got: ${because}`);
  }
  for (const { tool } of earlierCalls) {
    // No rule counts a call of a misspelled tool, so the test would prove nothing.
    if (!policies.tools.has(tool) && !hasImports(policies))
      faults.push(
        `history names a tool that does not exist: ${JSON.stringify(tool)}.${didYouMean(tool, policies.tools.keys())}`,
      );
  }
  const code = decision.allowed ? undefined : decision.code;
  if (test.code !== undefined && code !== test.code) faults.push(`Expected code ${test.code}, got ${code ?? 'none'}.`);
  // A real call with such arguments is answered 400 before any rule decides, so the test would prove nothing.
  if (decision.allowed)
    faults.push(
      ...listFaults(decision.tool.faults(args)).map((fault) => `The arguments do not fit ${test.tool}: ${fault}.`),
    );
  return { test, passed: faults.length === 0, got, because, faults };
}

/** Whether a server imports tools, whose names are known only at run time. */
function hasImports({ upstreams }: Policies): boolean {
  return [...upstreams.values()].some((upstream) => upstream.import !== undefined);
}

function classifyDecision(decision: PolicyDecision, votes: readonly Vote[]): PolicyTestResult['got'] {
  if (!decision.allowed || isOutvoted(decision, votes)) return 'deny';
  return decision.hold === undefined && decision.rule.delayMs === undefined ? 'allow' : 'hold';
}

function isOutvoted({ poll }: Extract<PolicyDecision, { allowed: true }>, votes: readonly Vote[]): boolean {
  return poll !== undefined && !hasQuorum(votes, poll.quorum);
}

function explainResult(decision: PolicyDecision, votes: readonly Vote[]): string {
  if (!decision.allowed) return decision.reason;
  const { rule, poll } = decision;
  if (!isOutvoted(decision, votes)) return `Allowed by ${rule.id}.`;
  const verdicts = votes.map(({ voter, verdict }) => `${voter}: ${verdict}`).join(', ');
  return `${rule.id} needs ${poll?.quorum} approvals from its voters (got ${verdicts}).`;
}

/** A test asks no webhook. A webhook whose vote the test does not give abstains. */
function collectVotes(test: PolicyTest, poll: VoterPoll | undefined): readonly Vote[] {
  const readVote = (voter: string): Vote['verdict'] => test.votes?.[voter] ?? 'abstain';
  const reason = 'given by the test';
  return [
    ...(poll?.votes ?? []),
    ...(poll?.open ?? []).map(({ name }) => ({ voter: name, verdict: readVote(name), reason })),
  ];
}

/** Votes for voters that would not be asked: the test means another rule, or takes an expression for a webhook. */
function findUnexpectedVotes({ votes = {} }: PolicyTest, decision: PolicyDecision): string[] {
  const webhooks = decision.allowed ? (decision.poll?.open ?? []).map(({ name }) => name) : [];
  const decider = decision.rule === undefined ? 'no rule' : decision.rule.id;
  return Object.keys(votes)
    .filter((voter) => !webhooks.includes(voter))
    .map(
      (voter) =>
        `votes names ${voter}, which is not asked: ${decider} decides, and its webhook voters are ${formatList(webhooks) || 'none'}.`,
    );
}
