import { hasQuorum, type Vote } from '../domain/approvals/vote.ts';
import { parseDurationMs } from '../domain/duration.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import { listFaults, type Policies, type PolicyDecision, type VoterPoll } from '../domain/policy.ts';
import { decideCall } from './decide.ts';
import { buildHistory, type HistoryCall } from './expressions/history-functions.ts';
import { findRequiredFacts } from './expressions/required-facts.ts';
import { type Diagnostics, formatList, resolvePosition, type SourceFile } from './faults.ts';
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
 *         votes: { reviewer: approve }   # optional: what voters behind webhooks say; whoever is not named says nothing
 *         expect: allow              # allow | deny | hold; a delay is a hold
 *         rule: rule 1               # optional: part of what names the rule or the reason
 *         history: [{ tool: payments.charge, args: { amount: 5 }, ago: 3m }]   # optional: what the agent did before
 *         tainted: true              # optional: it has read what strangers wrote
 */
export type PolicyTest = PolicyTestFile['tests'][number] & { readonly file: string; readonly line: number };

export interface PolicyTestResult {
  readonly test: PolicyTest;
  readonly passed: boolean;
  /** What the policies said, and why. */
  readonly got: 'allow' | 'deny' | 'hold';
  readonly because: string;
  /** What does not fit; empty when it passed. */
  readonly faults: readonly string[];
}

export function collectPolicyTests(sources: readonly SourceFile[], report: Diagnostics): PolicyTest[] {
  return sources.flatMap((source) => {
    if (source.value === null || source.value === undefined) return [];
    const parsed = testFileSchema.safeParse(source.value);
    if (!parsed.success) {
      reportZodIssues(report, { source, path: [] }, source.value, testFileSchema, parsed.error.issues);
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
    const because = `there is no agent ${JSON.stringify(test.agent)}`;
    return { test, passed: false, got: 'deny', because, faults: [because] };
  }
  const args = (test.args ?? {}) as JsonObject;
  const before = (test.history ?? []).map(
    ({ tool, args: given, ago }): HistoryCall => ({ tool, args: (given ?? {}) as Json, agoMs: parseDurationMs(ago) }),
  );
  const decision = decideCall(policies, agent, test.tool, {
    args,
    saga: test.saga ?? null,
    run: test.run ?? null,
    now: test.now === undefined ? Date.now() : Date.parse(test.now),
    history: buildHistory(before, findRequiredFacts(agent, test.tool)?.history ?? []),
    tainted: test.tainted ?? false,
  });
  const votes = decision.allowed ? collectVotes(test, decision.poll) : [];
  const got = classifyDecision(decision, votes);
  const because = explainResult(decision, votes);
  const faults: string[] = findUnexpectedVotes(test, decision);
  if (got !== test.expect) faults.push(`expected ${test.expect}, got ${got}: ${because}`);
  if (test.rule !== undefined && !because.includes(test.rule)) {
    faults.push(`expected ${JSON.stringify(test.rule)} to decide, but it was: ${because}`);
  }
  for (const { tool } of before) {
    // A slip of the pen here would be a past that no rule counts.
    if (!policies.tools.has(tool) && !hasImports(policies))
      faults.push(`there is no tool ${JSON.stringify(tool)} in history`);
  }
  const code = decision.allowed ? undefined : decision.code;
  if (test.code !== undefined && code !== test.code) faults.push(`expected code ${test.code}, got ${code ?? 'none'}`);
  // A call that passes here and is refused with 400 for real would be a test that proves nothing.
  if (decision.allowed)
    faults.push(...listFaults(decision.tool.faults(args)).map((fault) => `not arguments of ${test.tool}: ${fault}`));
  return { test, passed: faults.length === 0, got, because, faults };
}

/** Which tools a server brings in is known only when it was asked. */
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
  if (!isOutvoted(decision, votes)) return rule.id;
  const said = votes.map(({ voter, verdict }) => `${voter}: ${verdict}`).join(', ');
  return `${rule.id} needs ${poll?.quorum} approvals of its voters (${said})`;
}

/** Nobody is asked by a test: what it does not say itself counts as silence, which is not a yes. */
function collectVotes(test: PolicyTest, poll: VoterPoll | undefined): readonly Vote[] {
  const given = (voter: string): Vote['verdict'] => test.votes?.[voter] ?? 'abstain';
  const reason = 'as the test says';
  return [
    ...(poll?.votes ?? []),
    ...(poll?.open ?? []).map(({ name }) => ({ voter: name, verdict: given(name), reason })),
  ];
}

/** Votes of nobody who would be asked: the test means another rule, or takes an expression for a webhook. */
function findUnexpectedVotes({ votes = {} }: PolicyTest, decision: PolicyDecision): string[] {
  const asked = decision.allowed ? (decision.poll?.open ?? []).map(({ name }) => name) : [];
  const rule = decision.rule?.id ?? 'no rule';
  return Object.keys(votes)
    .filter((voter) => !asked.includes(voter))
    .map(
      (voter) => `votes has ${voter}, but ${rule} decides, and it asks ${formatList(asked) || 'nobody'} over a webhook`,
    );
}
