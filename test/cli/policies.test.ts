import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { EXAMPLE_POLICY } from '../policy/example.ts';
import { createDirectory, runCli } from './terminal.ts';

const env = { PAYMENTS_TOKEN: 'secret' };
const SMALL = '{"amount": 100, "card": "c", "currency": "usd"}';

const TESTS = `tests:
  - { name: small, agent: billing-bot, tool: payments.charge, args: { amount: 1, card: c, currency: usd }, expect: allow }
  - { name: large, agent: billing-bot, tool: payments.charge, args: { amount: 20000, card: c, currency: usd }, expect: hold }
`;

function buildExplainArguments(tool: string, args: string, ...more: string[]): string[] {
  return ['explain', '--agent', 'billing-bot', '--tool', tool, '--args', args, ...more];
}

describe('check', () => {
  it('counts files, tools and agents', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY, 'billing_test.yaml': TESTS });
    const { code, out, err } = await runCli(['check', '.'], { cwd, env });
    expect(out.split('\n').at(-2)).toBe('2 files, 2 tools, 1 agent: good');
    expect([code, err]).toEqual([0, '']);
    const { out: json } = await runCli(['check', '.', '--json'], { cwd, env });
    expect(JSON.parse(json)).toMatchObject({
      good: true,
      files: 2,
      tools: 2,
      agents: 1,
      people: 1,
      tests: 2,
      faults: [],
    });
  });

  it('prints every fault with its line, and exits with code 1', async () => {
    const cwd = await createDirectory({
      'a.yaml': 'tools:\n  x: { upstraem: u }\n',
      'b.yaml': 'agents:\n  bot: { rules: [{ allow: nothing.here }] }\n',
    });
    const { code, out } = await runCli(['check', '.'], { cwd });
    expect(code).toBe(1);
    expect(out).toMatch(/^a\.yaml:2:\d+: .*upstraem/m);
    expect(out).toMatch(/^b\.yaml:2:\d+: /m);
    expect(out).toMatch(/\n2 files: \d+ faults\n$/);
    const { code: jsonCode, out: json } = await runCli(['check', '.', '--json'], { cwd });
    const result = JSON.parse(json) as { good: boolean; faults: { file: string; line: number; column: number }[] };
    expect([jsonCode, result.good]).toEqual([1, false]);
    expect(result.faults[0]).toMatchObject({ file: 'a.yaml', line: 2 });
  });

  it('checks imported OpenAPI documents', async () => {
    const document = 'openapi: 3.1.0\npaths:\n  /a:\n    get: { operationId: a }\n    put: 5\n';
    const cwd = await createDirectory({
      'a.yaml': 'upstreams: { u: { adapter: http, url: "http://u.example", import: u.openapi.yaml } }\n',
      'u.openapi.yaml': document,
    });
    const bad = await runCli(['check', '.'], { cwd });
    expect([bad.code, bad.out]).toEqual([1, 'u.openapi.yaml:5:10: put must be a map (got 5).\n2 files: 1 fault\n']);
    await writeFile(join(cwd, 'u.openapi.yaml'), document.replace('    put: 5\n', ''));
    const good = await runCli(['check', '.'], { cwd });
    expect([good.code, good.out]).toEqual([0, '2 files, 1 tool, 0 agents: good\n']);
  });

  it('prints warnings, which are no faults', async () => {
    const cwd = await createDirectory({
      'a.yaml': 'upstreams: { u: { adapter: http, url: "http://u.example" } }\ntools: { t.x: { upstream: u } }\n',
      'b.yaml': 'agents:\n  bot:\n    keys: []\n    rules: [{ allow: "nothing.*" }]\n',
    });
    const { code, out } = await runCli(['check', '.'], { cwd });
    expect(out).toMatch(/^b\.yaml:4:\d+: warning: .*matches no tool/m);
    expect(code).toBe(0);
  });

  it('checks the configured directory by default', async () => {
    const dir = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    expect((await runCli(['check'], { env: { ...env, ONCEGATE_POLICIES: dir } })).code).toBe(0);
    const { code, out } = await runCli(['check'], { env: { ONCEGATE_POLICIES: `${dir}/none` }, cwd: '/dev' });
    expect(code).toBe(1);
    expect(out).toContain(`${dir}/none:1:1: The directory cannot be read (ENOENT).`);
  });

  it('accepts the policies of this project', async () => {
    const { code, out } = await runCli(['check', 'policies'], { cwd: process.cwd() });
    expect(out).toMatch(/: good\n$/);
    expect(code).toBe(0);
  });
});

describe('test', () => {
  it('prints how many tests passed', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY, 'billing_test.yaml': TESTS });
    const { code, out } = await runCli(['test', '.'], { cwd, env });
    expect(out).toBe('pass billing_test.yaml:2: small\npass billing_test.yaml:3: large\n2 passed, 0 failed\n');
    expect(code).toBe(0);
  });

  it('prints the expected and the actual decision, and exits with code 1', async () => {
    const wrong = TESTS.replace('expect: hold', 'expect: deny');
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY, 'billing_test.yaml': wrong });
    const { code, out } = await runCli(['test', '.'], { cwd, env });
    expect(out).toContain(
      'FAIL billing_test.yaml:3: large\n     Expected deny, got hold. Allowed by billing-bot rule 1',
    );
    expect(out).toMatch(/\n1 passed, 1 failed\n$/);
    expect(code).toBe(1);
    const { out: json } = await runCli(['test', '.', '--json'], { cwd, env });
    const result = JSON.parse(json) as { results: object[] };
    expect(result).toMatchObject({ good: false, passed: 1, failed: 1 });
    expect(result.results[1]).toMatchObject({ name: 'large', passed: false, expect: 'deny', got: 'hold' });
  });

  it('runs no test when the policies have faults', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY, 'billing_test.yaml': 'tests: [{}]\n' });
    const { code, out, err } = await runCli(['test', '.'], { cwd, env });
    expect([code, out]).toEqual([1, '']);
    expect(err).toMatch(/^billing_test\.yaml:1:\d+: /);
  });

  it('says so when there are no tests', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    const { out, err } = await runCli(['test', '.'], { cwd, env });
    expect(out).toBe('0 passed, 0 failed\n');
    expect(err).toContain('There are no tests');
  });
});

describe('explain', () => {
  it('shows the votes and the delay', async () => {
    const rules = `[{ allow: u.t, delay: 5m, voters: { quorum: 1, of: [{ name: small, when: args.n < 5 }, { name: big, when: args.n > 100 }] } }]`;
    const yaml = `upstreams:\n  u: { adapter: http, url: https://u.example }\ntools:\n  u.t: { upstream: u, once: { by: idempotent } }\nagents:\n  bot: { rules: ${rules} }\n`;
    const cwd = await createDirectory({ 'p.yaml': yaml });
    const explain = (n: number) =>
      runCli(['explain', '--agent', 'bot', '--tool', 'u.t', '--args', `{"n": ${n}}`, '.'], { cwd });
    const good = await explain(1);
    expect([good.code, good.out.split('\n').slice(0, 5)]).toEqual([
      0,
      [
        'hold\tAllowed by bot rule 1 (p.yaml:6).',
        '1 of 2 voters must approve:',
        '  small: approve, the condition is true',
        '  big: deny, the condition is false',
        'It waits 5m, and is then sent automatically.',
      ],
    ]);
    expect(await explain(50)).toMatchObject({ code: 1, out: expect.stringContaining('Too few voters of bot rule 1') });
  });

  it('shows every rule, and which one decides', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    const { code, out } = await runCli(buildExplainArguments('payments.charge', SMALL, '.'), { cwd, env });
    const lines = out.trimEnd().split('\n');
    expect(lines[0]).toMatch(/^allow\tAllowed by billing-bot rule 1 \(billing\.yaml:\d+\)\.$/);
    expect(lines.slice(1).map((line) => line.split('\t').slice(0, 2))).toEqual([
      ['decides', 'allow payments.charge'],
      ['tried', 'allow crm.*'],
      ['tried', 'deny *.delete_*'],
    ]);
    expect(code).toBe(0);
  });

  it.each([
    ['payments.charge', '{"amount": 20000, "card": "c", "currency": "usd"}', 0, 'hold'],
    ['payments.charge', '{"amount": 90000, "card": "c", "currency": "usd"}', 1, 'deny'],
    ['payments.refund', '{}', 1, 'deny'],
    ['payments.delete_all', '{}', 1, 'deny'],
    ['oncegate.get_call', '{}', 1, 'deny'],
  ])('%s %s', async (tool, args, expected, outcome) => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    const { code, out, err } = await runCli(buildExplainArguments(tool, args, '.', '--json'), { cwd, env });
    expect([code, err]).toEqual([expected, '']);
    expect(JSON.parse(out)).toMatchObject({ agent: 'billing-bot', tool, outcome });
  });

  it('shows who may approve a held call', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    const { out } = await runCli(buildExplainArguments('payments.charge', SMALL.replace('100', '20000'), '.'), {
      cwd,
      env,
    });
    expect(out).toContain('It waits for 1 approval by finance within 1h.');
  });

  it('fails for arguments that break the schema of the tool', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    const { code, out } = await runCli(
      buildExplainArguments('payments.charge', '{"amount": 1, "currency": "usd"}', '.'),
      {
        cwd,
        env,
      },
    );
    expect(out).toContain('The arguments do not fit the schema of the tool: ');
    expect(code).toBe(1);
  });

  it('explains built-in tools', async () => {
    const own = 'agents:\n  bot:\n    keys: []\n    rules: [{ allow: oncegate.get_call }]\n';
    const cwd = await createDirectory({ 'own.yaml': own });
    const { code, out } = await runCli(['explain', '--agent', 'bot', '--tool', 'oncegate.get_call', '.', '--json'], {
      cwd,
    });
    expect(JSON.parse(out)).toMatchObject({
      outcome: 'allow',
      tried: [{ decides: true, why: 'The rule matches and decides.' }],
    });
    expect(code).toBe(0);
  });

  it('assumes an empty history, says so, and takes --tainted', async () => {
    const when = `'!tainted && history.count("billing.*", "1h") < 1'`;
    const cwd = await createDirectory({
      'p.yaml': `upstreams:
  u: { adapter: http, url: "https://u.example", untrusted: true }
tools:
  billing.pay: { upstream: u, once: { by: idempotent } }
agents:
  billing-bot: { rules: [{ allow: billing.pay, when: ${when} }] }
`,
    });
    const clean = await runCli(buildExplainArguments('billing.pay', '{}', '.'), { cwd });
    expect(clean.code).toBe(0);
    expect(clean.out).toContain('Assumed: history.count("billing.*", "1h") is 0.\n');
    expect(clean.out).toContain('Assumed: tainted is false.\n');
    const tainted = await runCli(buildExplainArguments('billing.pay', '{}', '.', '--tainted', '--json'), { cwd });
    expect(tainted.code).toBe(1);
    const facts = { tainted: true, history: { 'count("billing.*", "1h")': 0 } };
    expect(JSON.parse(tainted.out)).toMatchObject({ outcome: 'deny', facts });
    expect((await runCli(buildExplainArguments('billing.pay', '{}', '--remote', '--tainted'), { cwd })).code).toBe(2);
  });

  it('suggests or lists agents when the name is unknown', async () => {
    const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
    const { code, err } = await runCli(['explain', '--agent', 'biling-bot', '--tool', 'x', '.'], { cwd, env });
    expect(err).toBe('There is no agent "biling-bot"; did you mean "billing-bot"?\n');
    expect(code).toBe(1);
    const other = await runCli(['explain', '--agent', 'zzzzz', '--tool', 'x', '.'], { cwd, env });
    expect(other.err).toMatch(/^There is no agent "zzzzz"; there (?:is|are): .*billing-bot.*\n$/);
  });
});

it('prints colour only on a terminal, and not with NO_COLOR', async () => {
  const cwd = await createDirectory({ 'billing.yaml': EXAMPLE_POLICY });
  const colour = '\u001b[';
  const argv = buildExplainArguments('payments.charge', SMALL, '.');
  expect((await runCli(argv, { cwd, env, isTty: true })).out).toContain(colour);
  expect((await runCli(argv, { cwd, env: { ...env, NO_COLOR: '1' }, isTty: true })).out).not.toContain(colour);
  expect((await runCli([...argv, '--json'], { cwd, env, isTty: true })).out).not.toContain(colour);
  expect((await runCli(argv, { cwd, env })).out).not.toContain(colour);
});
