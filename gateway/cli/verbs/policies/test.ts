import type { PolicyTestResult } from '../../../policy/policy-tests.ts';
import { type Output, paint } from '../../output.ts';
import { readGoodPolicies } from '../../policies.ts';
import type { Verb } from '../../verb.ts';

export const testVerb: Verb = {
  name: 'test',
  summary: 'run the *_test.yaml beside the policies',
  operands: [{ name: 'dir', optional: true }],
  run: async (invocation) => {
    const { out } = invocation;
    const { dir, policies, tests } = await readGoodPolicies(invocation);
    const { runPolicyTests: runSuite } = await import('../../../policy/policy-tests.ts');
    const results = runSuite(policies, tests);
    for (const result of results) tell(out, result);
    const failed = results.filter(({ passed }) => !passed).length;
    const passed = results.length - failed;
    if (results.length === 0) out.note(`there are no tests in any *_test.yaml below ${dir}`);
    out.line(`${passed} passed, ${failed} failed`);
    out.json({ good: failed === 0, dir, passed, failed, results: results.map(asJson) });
    return failed === 0 ? 0 : 1;
  },
};

function tell(out: Output, { test, passed, faults }: PolicyTestResult): void {
  const place = `${test.file}:${test.line}`;
  if (passed) out.line(paint('green', 'pass'), ` ${place}: ${test.name}`);
  else out.line(paint('red', 'FAIL'), ` ${place}: ${test.name}`);
  for (const fault of faults) out.line(`     ${fault}`);
}

function asJson({ test, passed, got, because, faults }: PolicyTestResult): object {
  const { name, file, line, agent, tool, expect } = test;
  return { name, file, line, agent, tool, passed, expect, got, because, faults };
}
