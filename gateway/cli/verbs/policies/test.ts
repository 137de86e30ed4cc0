import type { PolicyTestResult } from '../../../policy/policy-tests.ts';
import { type Output, paint } from '../../output.ts';
import { readValidPolicies } from '../../policy-directory.ts';
import type { Verb } from '../../verb.ts';

export const testVerb: Verb = {
  name: 'test',
  summary: 'run the policy tests (*_test.yaml)',
  operands: [{ name: 'dir', optional: true }],
  run: async (invocation) => {
    const { out } = invocation;
    const { dir, policies, tests } = await readValidPolicies(invocation);
    const { runPolicyTests } = await import('../../../policy/policy-tests.ts');
    const results = runPolicyTests(policies, tests);
    for (const result of results) printResult(out, result);
    const failed = results.filter(({ passed }) => !passed).length;
    const passed = results.length - failed;
    if (results.length === 0) out.printNote(`There are no tests in *_test.yaml files below ${dir}.`);
    out.printLine(`${passed} passed, ${failed} failed`);
    out.printJson({ good: failed === 0, dir, passed, failed, results: results.map(toJson) });
    return failed === 0 ? 0 : 1;
  },
};

function printResult(out: Output, { test, passed, faults }: PolicyTestResult): void {
  const location = `${test.file}:${test.line}`;
  if (passed) out.printLine(paint('green', 'pass'), ` ${location}: ${test.name}`);
  else out.printLine(paint('red', 'FAIL'), ` ${location}: ${test.name}`);
  for (const fault of faults) out.printLine(`     ${fault}`);
}

function toJson({ test, passed, got, because, faults }: PolicyTestResult): object {
  const { name, file, line, agent, tool, expect } = test;
  return { name, file, line, agent, tool, passed, expect, got, because, faults };
}
