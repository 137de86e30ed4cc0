import { milliseconds } from '../domain/duration.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Decision, Policies } from '../domain/policy.ts';
import { asksOf } from './asks.ts';
import { decide } from './decide.ts';
import { locate, type Report, type Source } from './faults.ts';
import { type PastCall, pastOf } from './history.ts';
import { reportIssues } from './issues.ts';
import { type TestFile, testFileSchema } from './schema.ts';

/**
 * Policy tests, `*_test.yaml` beside the policies:
 *
 *     tests:
 *       - name: a small charge goes through
 *         agent: billing-bot
 *         tool: payments.charge
 *         args: { amount: 100, currency: usd }
 *         expect: allow              # allow | deny | hold
 *         rule: rule 1               # optional: part of what names the rule or the reason
 *         history: [{ tool: payments.charge, args: { amount: 5 }, ago: 3m }]   # optional: what the agent did before
 *         tainted: true              # optional: it has read what strangers wrote
 */
export type PolicyTest = TestFile['tests'][number] & { readonly file: string; readonly line: number };

export interface TestResult {
  readonly test: PolicyTest;
  readonly passed: boolean;
  /** What the policies said, and why. */
  readonly got: 'allow' | 'deny' | 'hold';
  readonly because: string;
  /** What does not fit; empty when it passed. */
  readonly faults: readonly string[];
}

export function collectTests(sources: readonly Source[], report: Report): PolicyTest[] {
  return sources.flatMap((source) => {
    if (source.value === null || source.value === undefined) return [];
    const parsed = testFileSchema.safeParse(source.value);
    if (!parsed.success) {
      reportIssues(report, { source, path: [] }, source.value, testFileSchema, parsed.error.issues);
      return [];
    }
    return parsed.data.tests.map((test, index) => {
      const { file, line } = locate({ source, path: ['tests', index] });
      return { ...test, file, line };
    });
  });
}

export function runSuite(policies: Policies, tests: readonly PolicyTest[]): TestResult[] {
  return tests.map((test) => runTest(policies, test));
}

function runTest(policies: Policies, test: PolicyTest): TestResult {
  const agent = policies.agents.get(test.agent);
  if (agent === undefined) {
    const because = `there is no agent ${JSON.stringify(test.agent)}`;
    return { test, passed: false, got: 'deny', because, faults: [because] };
  }
  const args = (test.args ?? {}) as JsonObject;
  const before = (test.history ?? []).map(
    ({ tool, args: given, ago }): PastCall => ({ tool, args: (given ?? {}) as Json, agoMs: milliseconds(ago) }),
  );
  const decision = decide(policies, agent, test.tool, {
    args,
    saga: test.saga ?? null,
    run: test.run ?? null,
    now: test.now === undefined ? Date.now() : Date.parse(test.now),
    history: pastOf(before, asksOf(agent, test.tool)?.history ?? []),
    tainted: test.tainted ?? false,
  });
  const got = outcomeOf(decision);
  const because = decision.allowed ? decision.rule.id : decision.reason;
  const faults: string[] = [];
  if (got !== test.expect) faults.push(`expected ${test.expect}, got ${got}: ${because}`);
  if (test.rule !== undefined && !because.includes(test.rule)) {
    faults.push(`expected ${JSON.stringify(test.rule)} to decide, but it was: ${because}`);
  }
  for (const { tool } of before) {
    // A slip of the pen here would be a past that no rule counts.
    if (!policies.tools.has(tool) && !mayImport(policies))
      faults.push(`there is no tool ${JSON.stringify(tool)} in history`);
  }
  const code = decision.allowed ? undefined : decision.code;
  if (test.code !== undefined && code !== test.code) faults.push(`expected code ${test.code}, got ${code ?? 'none'}`);
  // A call that passes here and is refused with 400 for real would be a test that proves nothing.
  if (decision.allowed)
    faults.push(...decision.tool.faults(args).map((fault) => `not arguments of ${test.tool}: ${fault}`));
  return { test, passed: faults.length === 0, got, because, faults };
}

/** Which tools a server brings in is known only when it was asked. */
function mayImport({ upstreams }: Policies): boolean {
  return [...upstreams.values()].some((upstream) => upstream.import !== undefined);
}

function outcomeOf(decision: Decision): TestResult['got'] {
  if (!decision.allowed) return 'deny';
  return decision.hold === undefined ? 'allow' : 'hold';
}
