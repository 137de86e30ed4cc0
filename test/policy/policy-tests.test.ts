import { expect, test } from 'vitest';
import { runPolicyTests } from '../../gateway/policy/policy-tests.ts';
import { compilePolicyText, EXAMPLE_POLICY, listPolicyFaults } from './example.ts';

const TESTS = `tests:
  - name: a small charge is allowed
    agent: billing-bot
    tool: payments.charge
    args: { amount: 100, card: c, currency: usd }
    expect: allow
    rule: billing-bot rule 1
  - { name: a large one is held, agent: billing-bot, tool: payments.charge, args: { amount: 20000, card: c, currency: usd }, expect: hold }
  - { name: deleting is denied, agent: billing-bot, tool: crm.delete_all, expect: deny, code: denied, rule: rule 3 }
  - { name: unknown, agent: billing-bot, tool: crm.find, expect: deny, code: unknown_tool }
  - { name: wrong expectation, agent: billing-bot, tool: payments.charge, args: { amount: 1, card: c, currency: eur }, expect: allow }
  - { name: wrong rule, agent: billing-bot, tool: crm.delete_all, expect: deny, rule: rule 1 }
  - { name: unknown agent, agent: ghost, tool: crm.find, expect: deny }
  - { name: wrong arguments, agent: billing-bot, tool: payments.charge, args: { amount: 1, currency: usd }, expect: allow, now: 2026-01-01T00:00:00Z }
`;

test('policy tests pass or fail with reasons', () => {
  const loaded = compilePolicyText({ 'p.yaml': EXAMPLE_POLICY, 'p_test.yaml': TESTS }, { PAYMENTS_TOKEN: 'x' });
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
  const results = runPolicyTests(loaded.policies, loaded.tests);
  expect(results.map(({ test: { name, line }, got, passed }) => `${line} ${name}: ${got} ${passed}`)).toEqual([
    '2 a small charge is allowed: allow true',
    '8 a large one is held: hold true',
    '9 deleting is denied: deny true',
    '10 unknown: deny true',
    '11 wrong expectation: deny false',
    '12 wrong rule: deny false',
    '13 unknown agent: deny false',
    '14 wrong arguments: allow false',
  ]);
  expect(results.slice(4).map(({ faults }) => faults)).toEqual([
    [
      'Expected allow, got deny. No rule of billing-bot allows payments.charge with these arguments; tried billing-bot rule 1 (policies/p.yaml:38).',
    ],
    [
      'Expected "rule 1" in the name of the rule or in the reason. Got: Denied by billing-bot rule 3 (policies/p.yaml:45).',
    ],
    ['There is no agent "ghost".'],
    ['The arguments do not fit payments.charge: args must have "card".'],
  ]);
});

test('faults of a test file are reported with their positions', () => {
  expect(listPolicyFaults({ 'a_test.yaml': 'tests:\n  - { name: x, agent: a, tool: t, expect: alow }\n' })).toEqual([
    'policies/a_test.yaml:2:43: expect must be one of allow, deny, hold (got alow). Did you mean "allow"?',
  ]);
  expect(listPolicyFaults({ 'a_test.yaml': 'test: []\n' })).toEqual([
    'policies/a_test.yaml:1:1: Unknown key "test". Did you mean "tests"? Known keys: tests.',
    'policies/a_test.yaml:1:1: tests is required.',
  ]);
});
