import { describe, expect, it } from 'vitest';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import { decideBuiltIn, decideCall } from '../../gateway/policy/decide.ts';
import { buildHistory } from '../../gateway/policy/expressions/history-functions.ts';
import { findRequiredFacts } from '../../gateway/policy/expressions/required-facts.ts';
import {
  buildCallScope,
  compileValidPolicies,
  listPolicyFaults,
  listPolicyWarnings,
  requireAgent,
  UPSTREAM_YAML,
} from './example.ts';

const TOOLS = `${UPSTREAM_YAML}tools:
  a.read: { upstream: u, effect: read, untrusted: true }
  a.pay:
    upstream: u
    once: { by: idempotent }
    request: { path: /pay }
    redact: [args.card.number]
    input: { type: object, properties: { amount: { type: number }, card: { type: object } } }
  a.delete_it: { upstream: u, once: { by: idempotent }, request: { path: /delete } }
people:
  alice: { roles: [approver], groups: [finance] }
`;

const withRule = (rule: string) => `${TOOLS}agents:\n  bot:\n    rules:\n      - { ${rule} }\n`;
const faultOf = (when: string) => listPolicyFaults(withRule(`allow: a.pay, when: '${when}'`));

interface Past {
  readonly tool: string;
  readonly args?: Json;
  readonly agoMs?: number;
}

function judge(rule: string, before: readonly Past[], args: JsonObject = {}, tainted = false): string {
  const policies = compileValidPolicies(withRule(rule));
  const agent = requireAgent(policies);
  const history = buildHistory(
    before.map(({ tool, args: its = {}, agoMs = 0 }) => ({ tool, args: its, agoMs })),
    findRequiredFacts(agent, 'a.pay')?.history ?? [],
  );
  const decision = decideCall(policies, agent, 'a.pay', { ...buildCallScope(args), history, tainted });
  return decision.allowed ? (decision.hold === undefined ? 'allow' : 'hold') : decision.reason;
}

const paid = (amount: Json, agoMs = 0): Past => ({ tool: 'a.pay', args: { amount }, agoMs });

describe('history in a rule', () => {
  it('counts what fits the glob within the window', () => {
    const rule = `allow: a.pay, when: 'history.count("*.delete_*", "10m") < 2'`;
    const deleted = (agoMs: number): Past => ({ tool: 'a.delete_it', agoMs });
    expect(judge(rule, [deleted(0), paid(1), deleted(600_000)])).toBe('allow');
    expect(judge(rule, [deleted(0), deleted(599_999)])).toMatch(/no rule of bot allows a\.pay with these arguments/);
  });

  it('adds up an argument; what has none and what is negative adds nothing', () => {
    const rule = `allow: a.pay, when: 'history.sum("a.*", "amount", "24h") + args.amount <= 10'`;
    const before = [paid(4), paid(-100), paid(null), { tool: 'a.delete_it' }, paid(99, 86_400_000)];
    expect(judge(rule, before, { amount: 6 })).toBe('allow');
    expect(judge(rule, before, { amount: 6.01 })).toMatch(/no rule of bot allows/);
  });

  it('denies, and holds, where the sum cannot be told', () => {
    const sum = 'history.sum("a.pay", "amount", "24h")';
    expect(judge(`allow: a.pay, when: '${sum} < 10'`, [paid('4')])).toMatch(
      /cannot tell whether it allows this: history\.sum\("a\.pay", "amount", "24h"\) cannot be told/,
    );
    expect(judge(`allow: a.pay, approve: { when: '${sum} > 10' }`, [paid(true)])).toBe('hold');
    expect(judge(`allow: a.pay, approve: { when: '${sum} > 10' }`, [paid(1)])).toBe('allow');
  });

  it('is read only for tools whose rules ask', () => {
    const rules = `allow: "*", effect: read }\n      - { allow: a.pay, when: 'tainted || history.count("a.*", "1m") < 5'`;
    const agent = requireAgent(compileValidPolicies(withRule(rules)));
    expect(findRequiredFacts(agent, 'a.delete_it')).toBeUndefined();
    expect(findRequiredFacts(agent, 'a.pay')).toEqual({
      history: [{ text: 'count("a.*", "1m")', glob: 'a.*', windowMs: 60_000 }],
      taint: true,
    });
  });

  it('denies whoever forgets to read it', () => {
    const policies = compileValidPolicies(withRule(`allow: "*", when: '!tainted'`));
    expect(decideCall(policies, requireAgent(policies), 'a.pay', buildCallScope())).toMatchObject({ allowed: false });
    expect(decideBuiltIn(requireAgent(policies), 'oncegate.get_call', buildCallScope())).toMatchObject({
      allowed: false,
    });
  });
});

describe('tainted in a rule', () => {
  it.each<[string, boolean, string]>([
    [`allow: a.pay, when: '!tainted'`, false, 'allow'],
    [`allow: a.pay, when: '!tainted'`, true, 'no rule of bot'],
    ['allow: a.pay, approve: { when: tainted }', true, 'hold'],
    ['allow: a.pay, approve: { when: tainted }', false, 'allow'],
  ])('%s, tainted %s: %s', (rule, tainted, told) => {
    expect(judge(rule, [], {}, tainted)).toContain(told);
  });

  it('is inherited from the upstream, and can be taken back at a tool', () => {
    const policies = compileValidPolicies(`upstreams:
  u: { adapter: http, url: "http://u.example", untrusted: true }
tools:
  a.one: { upstream: u, effect: read }
  a.two: { upstream: u, effect: read, untrusted: false, request: { path: /two } }
`);
    expect([...policies.tools.values()].map(({ untrusted }) => untrusted)).toEqual([true, undefined]);
  });

  it('is warned about where nothing is untrusted', () => {
    const rule = `agents:\n  bot: { rules: [{ allow: a.read, when: "!tainted" }] }\n`;
    expect(listPolicyWarnings(`${UPSTREAM_YAML}tools:\n  a.read: { upstream: u, effect: read }\n${rule}`)).toEqual([
      expect.stringMatching(/p\.yaml:6:\d+: .*nothing is ever tainted: no tool and no upstream has untrusted: true/),
    ]);
  });
});

describe('refused at load, with its place', () => {
  const usage = 'history.count("*.delete_*", "10m") or history.sum("payments.*", "amount", "24h")';
  it.each<[string, string]>([
    ['history.count(tool, "10m") < 5', 'history.count takes literals only'],
    ['history.count("a.*", "1" + "0m") < 5', 'history.count takes literals only'],
    ['history.count("a.*") < 5', `history has no count of 1: write ${usage}`],
    ['history.most("a.*", "10m") < 5', `history has no most of 2: write ${usage}`],
    ['history.size == 5', `history is only for asking: ${usage}`],
    ['[history] == []', 'history is only for asking'],
    ['history.count("a.*", "10 m") < 5', '"10 m" is not a duration: write 500ms, 10s, 5m, 24h or 30d'],
    ['history.count("a.*", "31d") < 5', 'history goes back 30d at most'],
    ['history.count("a.%", "10m") < 5', '"a.%" is not a tool name or glob'],
    ['history.count("b.*", "10m") < 5', 'history.count("b.*", "10m") is always 0: no tool is named like b.*'],
    ['history.sum("a.*", "args.amount", "10m") < 5', 'the argument is named without args: write "amount"'],
    ['history.sum("a.*", "a b", "10m") < 5', '"a b" is not an argument: write "amount" or "order.total"'],
    ['history.sum("a.pay", "amout", "10m") < 5', 'no tool that is added up has an argument amout'],
    ['history.sum("a.*", "card.number", "1m") < 5', 'a.pay redacts args.card.number: what is not kept in clear'],
    ['history.sum("a.pay", "card", "1m") < 5', 'a.pay redacts args.card.number'],
    ['args.list.exists(tainted, true)', 'tainted is already a variable'],
  ])('%s', (when, fault) => {
    expect(faultOf(when)).toEqual([expect.stringContaining(fault)]);
    expect(faultOf(when)[0]).toMatch(/^policies\/p\.yaml:17:\d+: /);
  });

  it('history and tainted are not known to anything but conditions of rules', () => {
    const budget = `allow: a.pay, budget: { sum: 'history.count("a.*", "1m")', max: 1, per: 1h }`;
    expect(listPolicyFaults(withRule(budget))).toEqual([expect.stringContaining('"history" is not known here')]);
    expect(listPolicyFaults(`${TOOLS}`.replace('path: /pay', 'path: "/pay/$' + '{tainted}"'))).toEqual([
      expect.stringContaining('"tainted" is not known here'),
    ]);
  });
});
