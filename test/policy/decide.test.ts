import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { JsonObject } from '../../gateway/domain/json.ts';
import type { PolicyDecision } from '../../gateway/domain/policy.ts';
import {
  canAllowTool,
  DEFAULT_APPROVAL,
  decideBuiltIn,
  decideCall,
  explainDecision,
} from '../../gateway/policy/decide.ts';
import {
  buildCallScope,
  compileValidPolicies,
  EXAMPLE_POLICY,
  measureCpuMs,
  requireAgent,
  UPSTREAM_YAML,
} from './example.ts';

const TOOLS = `${UPSTREAM_YAML}tools:
  a.get: { upstream: u, effect: read }
  a.put: { upstream: u, once: { by: idempotent } }
  a.send: { upstream: u }
  b.get: { upstream: u, effect: read, request: { path: /b } }
people:
  alice: { roles: [approver], groups: [finance] }
`;

function withRules(...rules: string[]): string {
  if (rules.length === 0) return `${TOOLS}agents:\n  bot: { rules: [] }\n`;
  return `${TOOLS}agents:\n  bot:\n    rules:\n${rules.map((rule) => `      - { ${rule} }\n`).join('')}`;
}

function describeDecision(decision: PolicyDecision): string {
  if (!decision.allowed) return `${decision.code}: ${decision.reason}`;
  const { hold } = decision;
  const held =
    hold === undefined ? '' : ` held for ${hold.quorum} of ${hold.by.join() || 'any'} within ${hold.withinMs}`;
  return `allowed by ${decision.rule.id}${held}`;
}

const R = (n: number): string => `bot rule ${n} (policies/p.yaml:${12 + n})`;

describe('a decision', () => {
  test.each<[string, string[], string, JsonObject, string]>([
    ['no rule at all', [], 'a.get', {}, 'denied: No rule of bot allows a.get.'],
    ['an exact name', ['allow: a.get'], 'a.get', {}, `allowed by ${R(1)}`],
    ['an exact name matches no other', ['allow: a.get'], 'b.get', {}, 'denied: No rule of bot allows b.get.'],
    ['a glob', ['allow: "*.get"'], 'b.get', {}, `allowed by ${R(1)}`],
    ['any deny wins', ['allow: "*"', 'deny: a.*'], 'a.get', {}, `denied: Denied by ${R(2)}.`],
    [
      'a deny that does not match',
      ['allow: "*"', 'deny: a.*, when: args.x == 1'],
      'a.get',
      { x: 2 },
      `allowed by ${R(1)}`,
    ],
    [
      'a deny whose condition cannot be evaluated denies',
      ['allow: "*"', 'deny: a.*, when: args.x == 1'],
      'a.get',
      {},
      `denied: Denied by ${R(2)}. Its condition cannot be evaluated (x is missing in \`args.x == 1\`), so the deny applies.`,
    ],
    [
      'the first allow decides',
      ['allow: a.*, when: args.x > 5', 'allow: a.get'],
      'a.get',
      { x: 9 },
      `allowed by ${R(1)}`,
    ],
    [
      'the next allow decides if the first does not match',
      ['allow: a.*, when: args.x > 5', 'allow: a.get'],
      'a.get',
      { x: 1 },
      `allowed by ${R(2)}`,
    ],
    [
      'an allow whose condition cannot be evaluated denies',
      ['allow: a.*, when: args.x > 5', 'allow: a.get'],
      'a.get',
      {},
      `denied: Denied, because the condition of ${R(1)} cannot be evaluated: x is missing in \`args.x > 5\`.`,
    ],
    [
      'no allow matches',
      ['allow: a.*, when: args.x > 5'],
      'a.get',
      { x: 1 },
      `denied: No rule of bot allows a.get with these arguments; tried ${R(1)}.`,
    ],
    [
      'effect narrows a rule',
      ['allow: a.*, effect: read'],
      'a.put',
      {},
      `denied: No rule of bot allows a.put. ${R(1)} is for reads, and a.put is a write.`,
    ],
    [
      'effect narrows, and no other allow matches',
      ['allow: a.*, effect: read', 'allow: a.put, when: args.x > 5'],
      'a.put',
      { x: 1 },
      `denied: No rule of bot allows a.put with these arguments; tried ${R(2)}. ${R(1)} is for reads, and a.put is a write.`,
    ],
    ['the effect matches', ['allow: a.*, effect: read'], 'a.get', {}, `allowed by ${R(1)}`],
    ['a deny by effect', ['allow: "*"', 'deny: "*", effect: write'], 'a.put', {}, `denied: Denied by ${R(2)}.`],
    ['an unknown tool', ['allow: a.get'], 'a.nope', {}, 'denied: No rule of bot allows a.nope.'],
    ['an unknown tool that an allow covers', ['allow: a.*'], 'a.nope', {}, 'unknown_tool: There is no tool "a.nope".'],
    [
      'an unknown tool that an allow covers and a deny matches',
      ['allow: a.*', 'deny: "*.nope*"'],
      'a.nope',
      {},
      `denied: Denied by ${R(2)}.`,
    ],
    ['an unknown tool that only a deny covers', ['deny: a.*'], 'a.nope', {}, `denied: Denied by ${R(1)}.`],
    ['an idempotent write is not held', ['allow: a.put'], 'a.put', {}, `allowed by ${R(1)}`],
    [
      'a write with once: none is held',
      ['allow: a.send'],
      'a.send',
      {},
      `allowed by ${R(1)} held for 1 of any within 3600000`,
    ],
    [
      'a write with once: none is not held with approve: never',
      ['allow: a.send, approve: never'],
      'a.send',
      {},
      `allowed by ${R(1)}`,
    ],
    [
      'a write with once: none is held although the approval condition is false',
      ['allow: a.send, approve: { when: "false", by: [finance], within: 1m }'],
      'a.send',
      {},
      `allowed by ${R(1)} held for 1 of finance within 60000`,
    ],
    [
      'approve without a condition',
      ['allow: a.put, approve: {}'],
      'a.put',
      {},
      `allowed by ${R(1)} held for 1 of any within 3600000`,
    ],
    [
      'approve with a true condition',
      ['allow: a.put, approve: { when: args.x > 5 }'],
      'a.put',
      { x: 6 },
      `allowed by ${R(1)} held for 1 of any within 3600000`,
    ],
    [
      'approve with a false condition',
      ['allow: a.put, approve: { when: args.x > 5 }'],
      'a.put',
      { x: 5 },
      `allowed by ${R(1)}`,
    ],
    [
      'approve with a condition that cannot be evaluated',
      ['allow: a.put, approve: { when: args.x > 5 }'],
      'a.put',
      {},
      `allowed by ${R(1)} held for 1 of any within 3600000`,
    ],
    [
      'a condition reads agent, tool, saga and now',
      [`allow: "*", when: 'agent == "bot" && tool == "a.get" && saga == null && now.getFullYear() == 2026'`],
      'a.get',
      {},
      `allowed by ${R(1)}`,
    ],
  ])('%s', (_name, rules, tool, args, expected) => {
    const policies = compileValidPolicies(withRules(...rules));
    expect(describeDecision(decideCall(policies, requireAgent(policies), tool, buildCallScope(args)))).toBe(expected);
  });

  test('of the example policy', () => {
    const policies = compileValidPolicies(EXAMPLE_POLICY, { PAYMENTS_TOKEN: 'x' });
    const agent = requireAgent(policies, 'billing-bot');
    const charge = (args: JsonObject) => decideCall(policies, agent, 'payments.charge', buildCallScope(args));
    expect(charge({ amount: 100, currency: 'usd' })).toMatchObject({ allowed: true, hold: undefined });
    expect(charge({ amount: 10001, currency: 'usd' })).toMatchObject({
      allowed: true,
      hold: { by: ['finance'], quorum: 1 },
    });
    expect(charge({ amount: 50001, currency: 'usd' })).toMatchObject({ allowed: false, code: 'denied' });
    expect(charge({ amount: 100, currency: 'eur' })).toMatchObject({ allowed: false, code: 'denied' });
    expect(decideCall(policies, agent, 'crm.delete_all', buildCallScope())).toMatchObject({
      allowed: false,
      code: 'denied',
    });
  });

  test('about built-in tools', () => {
    const policies = compileValidPolicies(withRules('allow: oncegate.*, effect: read', 'allow: oncegate.begin_saga'));
    const may = (tool: string) => decideBuiltIn(requireAgent(policies), tool, buildCallScope()).allowed;
    expect(may('oncegate.get_call')).toBe(true);
    expect(may('oncegate.begin_saga')).toBe(true);
    expect(may('oncegate.commit_saga')).toBe(false);
  });

  test('canAllowTool selects the tools that a list shows', () => {
    const policies = compileValidPolicies(
      withRules('allow: "*.get"', 'allow: a.put, when: "false"', 'deny: b.*', 'deny: a.get, when: "false"'),
    );
    const shown = [...policies.tools.values()]
      .filter((tool) => canAllowTool(requireAgent(policies), tool))
      .map((tool) => tool.name);
    expect(shown).toEqual(['a.get', 'a.put']);
  });

  test('is explained for every rule', () => {
    const policies = compileValidPolicies(
      withRules(
        'allow: b.*',
        'allow: a.*, effect: write',
        'allow: a.get, when: args.x > 5',
        'deny: a.get, when: args.y',
        'allow: a.*',
      ),
    );
    const { decision, tried } = explainDecision(
      policies,
      requireAgent(policies),
      'a.get',
      buildCallScope({ x: 1, y: false }),
    );
    expect(describeDecision(decision)).toBe(`allowed by ${R(5)}`);
    expect(tried.map(({ matched, why }) => `${matched}: ${why}`)).toEqual([
      'false: The pattern b.* does not cover a.get.',
      'false: The rule is for writes, and a.get is a read.',
      'false: The condition is false.',
      'false: The condition is false.',
      'true: The rule matches and decides.',
    ]);
    const errors = explainDecision(policies, requireAgent(policies), 'a.get', buildCallScope()).tried.map(
      ({ matched, why }) => `${matched}: ${why}`,
    );
    expect(errors.slice(2)).toEqual([
      'false: The condition cannot be evaluated: x is missing in `args.x > 5`.',
      'true: The condition cannot be evaluated: y is missing in `args.y`.',
      'true: The rule matches, but another rule decides.',
    ]);
  });

  test('uses a frozen default approval', () => {
    expect(Object.isFrozen(DEFAULT_APPROVAL) && Object.isFrozen(DEFAULT_APPROVAL.by)).toBe(true);
  });
});

const pattern = fc.constantFrom('*', 'a.*', '*.get', '*.put', 'a.get', 'a.put', 'a.send', 'b.get', '*e*');
const condition = fc.constantFrom(
  '',
  ', when: "true"',
  ', when: "false"',
  ', when: args.x > 1',
  ', when: args.y',
  ', effect: read',
  ', effect: write',
);
const fitting = (rule: string): boolean => !/a\.(put|send).*effect: read|: (a|b)\.get.*effect: write/.test(rule);
const ruleText = (verdict: string) =>
  fc
    .tuple(pattern, condition)
    .map(([p, c]) => `${verdict}: "${p}"${c}`)
    .filter((rule) => fitting(rule.replaceAll('"', '')));
const rules = fc.array(fc.oneof(ruleText('allow'), ruleText('deny')), { maxLength: 6 });
const args = fc.record({ x: fc.constantFrom(0, 2, 'z'), y: fc.constantFrom(true, false, 1) }, { requiredKeys: [] });
const name = fc.constantFrom('a.get', 'a.put', 'a.send', 'b.get', 'a.nope', 'zzz');

describe('properties of decisions', () => {
  test('an unconditional deny wins over every allow', () => {
    fc.assert(
      fc.property(rules, fc.nat(6), name, args, (some, at, tool, given) => {
        const policies = compileValidPolicies(withRules(...some.slice(0, at), 'deny: "*"', ...some.slice(at)));
        expect(decideCall(policies, requireAgent(policies), tool, buildCallScope(given)).allowed).toBe(false);
      }),
      { numRuns: 150 },
    );
  });

  test('adding a deny never allows more', () => {
    fc.assert(
      fc.property(rules, ruleText('deny'), fc.nat(6), name, args, (some, deny, at, tool, given) => {
        const before = compileValidPolicies(withRules(...some));
        const after = compileValidPolicies(withRules(...some.slice(0, at), deny, ...some.slice(at)));
        const was = decideCall(before, requireAgent(before), tool, buildCallScope(given)).allowed;
        expect(was || !decideCall(after, requireAgent(after), tool, buildCallScope(given)).allowed).toBe(true);
      }),
      { numRuns: 150 },
    );
  });

  test('an unknown tool is denied, an allowed call names its rule, and explain agrees with decide', () => {
    fc.assert(
      fc.property(rules, name, args, (some, tool, given) => {
        const policies = compileValidPolicies(withRules(...some));
        const decision = decideCall(policies, requireAgent(policies), tool, buildCallScope(given));
        if (!policies.tools.has(tool)) expect(decision.allowed).toBe(false);
        if (decision.allowed) expect(decision.rule.verdict).toBe('allow');
        else expect(decision.reason).toMatch(/rule|There is no tool/);
        expect(explainDecision(policies, requireAgent(policies), tool, buildCallScope(given)).decision).toEqual(
          decision,
        );
      }),
      { numRuns: 150 },
    );
  });
});

describe('the cost budget of a decision', () => {
  const many = (length: number, rule: (i: number) => string) =>
    compileValidPolicies(withRules(...Array.from({ length }, (_, i) => rule(i)), 'allow: a.get'));
  const isListed = (i: number) => `deny: a.get, when: 'args.list.exists(x, x == "no-${i}")'`;

  test.each<[string, ReturnType<typeof compileValidPolicies>, JsonObject]>([
    [
      '200 rules over 300 items',
      many(200, (i) => `deny: a.get, when: 'args.items.exists(i, i.sku == "no-${i}")'`),
      { items: Array.from({ length: 300 }, (_, i) => ({ sku: `sku-${i}`, count: i })) },
    ],
    [
      '200 rules about the time',
      many(200, (i) => `deny: a.get, when: 'now.getHours("Europe/Berlin") > ${24 + i}'`),
      {},
    ],
    [
      '100 rules over 50 KB of text',
      many(100, (i) => `deny: a.get, when: 'args.body.contains("confidential-${i}")'`),
      { body: 'all work and no play '.repeat(2_400) },
    ],
  ])('allows %s', (_, policies, args) => {
    expect(describeDecision(decideCall(policies, requireAgent(policies), 'a.get', buildCallScope(args)))).toMatch(
      /^allowed by /,
    );
  });

  test('is shared by all rules, and a rule beyond it denies', () => {
    const policies = many(40, isListed);
    const decided = (length: number) =>
      describeDecision(
        decideCall(policies, requireAgent(policies), 'a.get', buildCallScope({ list: Array.from({ length }, String) })),
      );
    expect(decided(100)).toBe(`allowed by ${R(41)}`);
    // Each rule alone would stay within the budget.
    expect(decided(9_000)).toMatch(
      /^denied: .*cannot be evaluated \(the evaluation is too costly for arguments of this size/,
    );
    expect(decided(100)).toBe(`allowed by ${R(41)}`);
  });

  test('limits a single rule', () => {
    const policies = many(1, isListed);
    const list = Array.from({ length: 60_000 }, String);
    expect(describeDecision(decideCall(policies, requireAgent(policies), 'a.get', buildCallScope({ list })))).toMatch(
      /too costly/,
    );
  });

  test('counts the characters that size() counts', () => {
    const policies = many(40, (i) => `deny: a.get, when: 'size(args.text) == ${i}'`);
    const text = 'x'.repeat(1_000_000);
    const decided = () =>
      describeDecision(decideCall(policies, requireAgent(policies), 'a.get', buildCallScope({ text })));
    expect(measureCpuMs(() => void decided())).toBeLessThan(600);
    expect(decided()).toMatch(/too costly/);
  });

  test('includes the conditions of voters', () => {
    const voters = Array.from({ length: 16 }, (_, i) => `{ name: v${i}, when: 'args.list.exists(x, x == "no-${i}")' }`);
    const rule = `allow: a.get, voters: { quorum: 1, of: [${voters.join(', ')}] }`;
    const policies = compileValidPolicies(withRules(rule));
    const list = Array.from({ length: 20_000 }, String);
    const decision = decideCall(policies, requireAgent(policies), 'a.get', buildCallScope({ list }));
    const verdicts = decision.allowed ? decision.poll?.votes.map(({ verdict }) => verdict) : [];
    expect(new Set(verdicts)).toEqual(new Set(['deny', 'abstain']));
  });

  test('applies to explain as well', () => {
    const policies = many(40, isListed);
    const args = buildCallScope({ list: Array.from({ length: 9_000 }, String) });
    const { decision, tried } = explainDecision(policies, requireAgent(policies), 'a.get', args);
    expect(decision).toEqual(decideCall(policies, requireAgent(policies), 'a.get', args));
    const decider = tried.find(({ rule }) => rule === decision.rule);
    expect(decider).toMatchObject({ matched: true, why: expect.stringContaining('too costly') });
    expect(tried.find(({ matched }) => matched)).toBe(decider);
  });
});

test('a decision over 200 rules takes less than 50 µs', () => {
  const many = Array.from({ length: 199 }, (_, index) =>
    index % 4 === 0 ? `deny: "a.*", when: args.x == ${index + 10}` : `allow: "x${index}.*", when: args.x <= ${index}`,
  );
  const policies = compileValidPolicies(withRules(...many, 'allow: a.get, when: args.x <= 50000 && args.c == "usd"'));
  const agent = requireAgent(policies);
  const given = buildCallScope({ x: 5, c: 'usd' });
  const best = Math.min(
    ...Array.from({ length: 20 }, () => {
      const started = performance.now();
      for (let index = 0; index < 500; index++) decideCall(policies, agent, 'a.get', given);
      return (performance.now() - started) / 500;
    }),
  );
  console.log(`a decision over 200 rules: ${(best * 1000).toFixed(1)} µs`);
  expect(decideCall(policies, agent, 'a.get', given).allowed).toBe(true);
  expect(best).toBeLessThan(0.05);
});
