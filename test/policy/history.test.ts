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

interface EarlierCall {
  readonly tool: string;
  readonly args?: Json;
  readonly agoMs?: number;
}

function decide(rule: string, before: readonly EarlierCall[], args: JsonObject = {}, tainted = false): string {
  const policies = compileValidPolicies(withRule(rule));
  const agent = requireAgent(policies);
  const history = buildHistory(
    before.map(({ tool, args: its = {}, agoMs = 0 }) => ({ tool, args: its, agoMs })),
    findRequiredFacts(agent, 'a.pay')?.history ?? [],
  );
  const decision = decideCall(policies, agent, 'a.pay', { ...buildCallScope(args), history, tainted });
  return decision.allowed ? (decision.hold === undefined ? 'allow' : 'hold') : decision.reason;
}

const paid = (amount: Json, agoMs = 0): EarlierCall => ({ tool: 'a.pay', args: { amount }, agoMs });

describe('history in a rule', () => {
  it('counts the calls that match the glob within the window', () => {
    const rule = `allow: a.pay, when: 'history.count("*.delete_*", "10m") < 2'`;
    const deleted = (agoMs: number): EarlierCall => ({ tool: 'a.delete_it', agoMs });
    expect(decide(rule, [deleted(0), paid(1), deleted(600_000)])).toBe('allow');
    expect(decide(rule, [deleted(0), deleted(599_999)])).toMatch(/No rule of bot allows a\.pay with these arguments/);
  });

  it('sums an argument; a missing or negative one counts as 0', () => {
    const rule = `allow: a.pay, when: 'history.sum("a.*", "amount", "24h") + args.amount <= 10'`;
    const before = [paid(4), paid(-100), paid(null), { tool: 'a.delete_it' }, paid(99, 86_400_000)];
    expect(decide(rule, before, { amount: 6 })).toBe('allow');
    expect(decide(rule, before, { amount: 6.01 })).toMatch(/No rule of bot allows/);
  });

  it('denies, or holds, when the sum is unknown', () => {
    const sum = 'history.sum("a.pay", "amount", "24h")';
    expect(decide(`allow: a.pay, when: '${sum} < 10'`, [paid('4')])).toMatch(
      /cannot be evaluated: history\.sum\("a\.pay", "amount", "24h"\) is unknown/,
    );
    expect(decide(`allow: a.pay, approve: { when: '${sum} > 10' }`, [paid(true)])).toBe('hold');
    expect(decide(`allow: a.pay, approve: { when: '${sum} > 10' }`, [paid(1)])).toBe('allow');
  });

  it('is read only for tools whose rules use it', () => {
    const rules = `allow: "*", effect: read }\n      - { allow: a.pay, when: 'tainted || history.count("a.*", "1m") < 5'`;
    const agent = requireAgent(compileValidPolicies(withRule(rules)));
    expect(findRequiredFacts(agent, 'a.delete_it')).toBeUndefined();
    expect(findRequiredFacts(agent, 'a.pay')).toEqual({
      history: [{ text: 'count("a.*", "1m")', glob: 'a.*', windowMs: 60_000 }],
      taint: true,
    });
  });

  it('denies when the facts were not read', () => {
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
    [`allow: a.pay, when: '!tainted'`, true, 'No rule of bot'],
    ['allow: a.pay, approve: { when: tainted }', true, 'hold'],
    ['allow: a.pay, approve: { when: tainted }', false, 'allow'],
  ])('%s, tainted %s: %s', (rule, tainted, expected) => {
    expect(decide(rule, [], {}, tainted)).toContain(expected);
  });

  it('is inherited from untrusted of the upstream, which a tool can override', () => {
    const policies = compileValidPolicies(`upstreams:
  u: { adapter: http, url: "http://u.example", untrusted: true }
tools:
  a.one: { upstream: u, effect: read }
  a.two: { upstream: u, effect: read, untrusted: false, request: { path: /two } }
`);
    expect([...policies.tools.values()].map(({ untrusted }) => untrusted)).toEqual([true, undefined]);
  });

  it('is a warning when nothing is untrusted', () => {
    const rule = `agents:\n  bot: { rules: [{ allow: a.read, when: "!tainted" }] }\n`;
    expect(listPolicyWarnings(`${UPSTREAM_YAML}tools:\n  a.read: { upstream: u, effect: read }\n${rule}`)).toEqual([
      expect.stringMatching(
        /p\.yaml:6:\d+: tainted is always false, because no tool and no upstream has untrusted: true\./,
      ),
    ]);
  });
});

describe('a fault at load, with its position', () => {
  const usage = 'history.count("*.delete_*", "10m") or history.sum("payments.*", "amount", "24h")';
  it.each<[string, string]>([
    ['history.count(tool, "10m") < 5', 'The arguments of history.count must be literals'],
    ['history.count("a.*", "1" + "0m") < 5', 'The arguments of history.count must be literals'],
    ['history.count("a.*") < 5', `history.count with 1 arguments does not exist. Write ${usage}.`],
    ['history.most("a.*", "10m") < 5', `history.most with 2 arguments does not exist. Write ${usage}.`],
    ['history.size == 5', `history can be used only as ${usage}.`],
    ['[history] == []', 'history can be used only as'],
    [
      'history.count("a.*", "10 m") < 5',
      'The window must be a duration such as 500ms, 10s, 5m, 24h or 30d (got "10 m").',
    ],
    ['history.count("a.*", "31d") < 5', 'The window must be at most 30d (got 31d).'],
    [
      'history.count("a.%", "10m") < 5',
      'The first argument must be a tool name or glob of letters, digits, _, -, . and * (got a.%).',
    ],
    ['history.count("b.*", "10m") < 5', 'history.count("b.*", "10m") is always 0, because no tool matches "b.*".'],
    ['history.sum("a.*", "args.amount", "10m") < 5', 'The argument must be named without args. Write "amount".'],
    [
      'history.sum("a.*", "a b", "10m") < 5',
      'The argument must be a path such as "amount" or "order.total" (got "a b").',
    ],
    [
      'history.sum("a.pay", "amout", "10m") < 5',
      'None of the summed tools has an argument amout. Did you mean "amount"?',
    ],
    [
      'history.sum("a.*", "card.number", "1m") < 5',
      'card.number of a.pay cannot be summed, because a.pay redacts args.card.number.',
    ],
    ['history.sum("a.pay", "card", "1m") < 5', 'a.pay redacts args.card.number'],
    ['args.list.exists(tainted, true)', 'The name tainted is already a variable.'],
  ])('%s', (when, fault) => {
    expect(faultOf(when)).toEqual([expect.stringContaining(fault)]);
    expect(faultOf(when)[0]).toMatch(/^policies\/p\.yaml:17:\d+: /);
  });

  it('is using history or tainted outside the conditions of rules', () => {
    const budget = `allow: a.pay, budget: { sum: 'history.count("a.*", "1m")', max: 1, per: 1h }`;
    expect(listPolicyFaults(withRule(budget))).toEqual([expect.stringContaining('Unknown variable "history".')]);
    expect(listPolicyFaults(`${TOOLS}`.replace('path: /pay', 'path: "/pay/$' + '{tainted}"'))).toEqual([
      expect.stringContaining('Unknown variable "tainted".'),
    ]);
  });
});
