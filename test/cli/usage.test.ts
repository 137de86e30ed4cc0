import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { runCli } from './terminal.ts';

const TXN = '7c0e6a52-8a0c-8f00-9a52-0123456789ab';

describe('wrong usage exits with code 2 and prints the fault and a usage line', () => {
  it.each([
    [['chekc'], 'there is no verb "chekc"; did you mean "check"?'],
    [['cals'], 'there is no verb "cals"; did you mean "calls"?'],
    [['zzzzzz'], 'there is no verb "zzzzzz"\n'],
    [['key'], 'key needs a second word: key new'],
    [['key', 'old'], 'there is no verb "key old"; use key new'],
    [['calls', '--stat', 'held'], 'unknown option --stat; did you mean "--state"?'],
    [['calls', '--jsno'], 'unknown option --jsno; did you mean "--json"?'],
    [['calls', '-x'], 'unknown option -x'],
    [['calls', '--state', 'heldd'], '--state "heldd" is not one of held, ready'],
    [['calls', '--limit', '0'], '--limit must be a number from 1 to 9999999 (got "0")'],
    [['calls', '--limit', '5', '--all'], '--limit and --all exclude each other'],
    [['calls', '--limit', '--all'], '--limit N needs a value'],
    [['calls', '--all=yes'], '--all takes no value'],
    [['calls', '--agent', 'a', '--agent', 'b'], '--agent is given twice'],
    [['calls', '--since', 'yesterday'], '--since must be an age such as 24h or a time such as'],
    [['calls', '--since', '2026-99-99'], '(got "2026-99-99")'],
    [['calls', 'surplus'], 'unexpected argument "surplus"'],
    [['call'], '<txn> is missing'],
    [['resolve', TXN, '--reason', 'I looked'], '--verdict applied|not_applied|retry is missing'],
    [['resolve', TXN, '--verdict', 'applied'], '--reason TEXT is missing'],
    [['resolve', TXN, '--verdict', 'applied', '--reason', ' '], '--reason must not be empty'],
    [
      ['resolve', TXN, '--verdict', 'maybe', '--reason', 'x'],
      '--verdict "maybe" is not one of applied, not_applied, retry',
    ],
    [['resolve', TXN, '--verdict', 'retry', '--reason', 'x', '--result', '1'], '--result needs --verdict applied'],
    [['resolve', TXN, '--verdict', 'applied', '--reason', 'x', '--result', '{'], '--result is not valid JSON'],
    [['rollback', TXN], '--reason TEXT is missing (or add --dry-run'],
    [['rollback', TXN, '--reason', ' '], '--reason must not be empty'],
    [['rollback', '--dry-run'], '<saga> is missing'],
    [['sagas', '--state', 'done'], '--state "done" is not one of open, committed'],
    [['resume', TXN], '--reason TEXT is missing'],
    [['resume', TXN, '--waive', 'x', '--reason', 'x'], '--waive must be a txn (got "x")'],
    [['resume', TXN, '--waive', TXN, TXN, '--reason', 'x'], 'unexpected argument'],
    [['close', TXN], '--reason TEXT is missing'],
    [['undo', TXN, '--reason', 'x', '--args', '[]'], '--args must be a JSON object'],
    [['approve', TXN], '--reason TEXT is missing'],
    [['approve', TXN, '--reason', 'fine'], 'add --yes, or --digest with the digest that you saw'],
    [['approve', TXN, '--reason', 'fine', '--digest', 'abc'], '--digest is not 64 hex digits'],
    [['reject', TXN, '--reason', ' '], '--reason must not be empty'],
    [['approvals', '--state', 'held'], '--state "held" is not one of pending, approved'],
    [['freeze'], '--reason TEXT is missing'],
    [['freeze', '--agent', 'a', '--tool', 't', '--reason', 'x'], '--agent and --tool exclude each other'],
    [['breaker', 'payments', '--reason', 'x'], 'open or close is missing'],
    [['breaker', 'payments', 'opne', '--reason', 'x'], '"opne" is not one of open, close; did you mean "open"?'],
    [['breaker', 'payments', 'open'], '--reason TEXT is missing'],
    [['explain', 'policies', '--agent', 'a', '--tool', 't', '--remote'], '--remote takes no directory'],
    [['explain', '--tool', 't'], '--agent AGENT is missing'],
    [['explain', '--agent', 'a', '--tool', 't', '--args', '{"a":1,"a":2}'], '"a" occurs twice'],
    [['explain', '--agent', 'a', '--tool', 't', '--args', '[]'], '--args must be a JSON object'],
    [['--verbose', 'calls'], '--verbose must come after the verb'],
    [['--json'], 'the verb is missing'],
    [['help', 'chekc'], 'did you mean "check"?'],
  ])('%j', async (argv, sentence) => {
    const env = { ONCEGATE_KEY: 'k', ONCEGATE_URL: 'http://127.0.0.1:1' };
    const { code, out, err } = await runCli(argv, { env });
    expect(err).toContain(sentence);
    expect(err).toMatch(/^oncegate: .*\nusage: oncegate .*\n$/);
    expect(code).toBe(2);
    if (!argv.includes('--json')) expect(out).toBe('');
  });

  it('is also reported as JSON with --json', async () => {
    const { code, out } = await runCli(['calls', '--json', '--stat', 'held']);
    expect(code).toBe(2);
    expect(JSON.parse(out)).toMatchObject({ error: { code: 'usage' } });
  });

  it('without a verb prints the list of verbs', async () => {
    const { code, out, err } = await runCli([]);
    expect([code, out]).toEqual([2, '']);
    expect(err).toContain('usage: oncegate <verb>');
  });
});

describe('help', () => {
  it('lists every verb, within 80 columns', async () => {
    const { code, out } = await runCli(['help']);
    const { out: json } = await runCli(['help', '--json']);
    const { verbs } = JSON.parse(json) as { verbs: { name: string; summary: string }[] };
    expect(code).toBe(0);
    expect(verbs.map(({ name }) => name)).toEqual(
      expect.arrayContaining([
        'start',
        'migrate',
        'check',
        'test',
        'explain',
        'key new',
        'calls',
        'call',
        'resolve',
        'undo',
        'sagas',
        'saga',
        'rollback',
        'resume',
        'close',
        'approvals',
        'approve',
        'reject',
        'agents',
        'freeze',
        'unfreeze',
        'breakers',
        'breaker',
        'reload',
        'audit export',
        'audit verify',
        'audit accept',
        'erase',
        'witness',
        'openapi',
      ]),
    );
    for (const { name, summary } of verbs) {
      expect(out).toContain(`  ${name}`);
      expect(out).toContain(summary);
    }
    for (const line of out.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  });

  it.each([
    [['help', 'key', 'new']],
    [['help', 'key']],
    [['key', 'new', '--help']],
    [['key', '-h']],
    [['-h', 'key', 'new']],
  ])('%j shows one verb', async (argv) => {
    const { code, out } = await runCli(argv);
    expect(out).toMatch(/^usage: oncegate key new \[--json\]\n/);
    expect(code).toBe(0);
  });

  it('fits 80 columns for each verb, and breaks no line inside an option', async () => {
    const { verbs } = JSON.parse((await runCli(['help', '--json'])).out) as { verbs: { name: string }[] };
    for (const name of [...verbs.map((verb) => verb.name), 'audit']) {
      const { out } = await runCli(['help', ...name.split(' ')]);
      for (const line of out.split('\n')) expect(line.length, line).toBeLessThanOrEqual(80);
    }
    const { out } = await runCli(['help', 'resolve']);
    expect(out.split('\n\n')[0]?.split('\n')).toEqual([
      'usage: oncegate resolve <txn> --verdict applied|not_applied|retry --reason TEXT',
      '         [--result JSON] [--sender-is-dead] [--json]',
    ]);
    expect(out).toContain('  --verdict applied|not_applied|retry  what you found out; retry sends the call');
    expect((await runCli(['help', 'audit', 'verify'])).out).toContain('<file>             an export; - reads standard');
  });

  it('is printed by --help, also without the required arguments of the verb', async () => {
    expect(await runCli(['--help'])).toEqual(await runCli(['help']));
    expect((await runCli(['resolve', '--help'])).code).toBe(0);
  });
});

describe('key new', () => {
  it('prints a key and its line for a policy file', async () => {
    const { code, out, err } = await runCli(['key', 'new']);
    const [, key = '', digest] = /^(og_[\w-]{43})\nkeys: \["sha256:([0-9a-f]{64})"\]\n$/.exec(out) ?? [];
    expect(code).toBe(0);
    expect(createHash('sha256').update(key).digest('hex')).toBe(digest);
    expect(err).toContain('not shown again');
    expect((await runCli(['key', 'new'])).out).not.toBe(out);
  });

  it('prints only JSON with --json, in any position', async () => {
    for (const argv of [
      ['key', 'new', '--json'],
      ['--json', 'key', 'new'],
      ['key', '--json', 'new'],
    ]) {
      const { out, err } = await runCli(argv);
      expect(Object.keys(JSON.parse(out))).toEqual(['key', 'digest']);
      expect(err).toBe('');
    }
  });
});

describe('version and migrate', () => {
  it('prints the version of the package', async () => {
    expect((await runCli(['version'])).out).toMatch(/^oncegate \d+\.\d+\.\d+\n$/);
    expect(await runCli(['--version'])).toEqual(await runCli(['version']));
    expect(JSON.parse((await runCli(['version', '--json'])).out)).toHaveProperty('version');
  });

  it('has nothing to migrate without a DATABASE_URL', async () => {
    const { code, out } = await runCli(['migrate']);
    expect(code).toBe(0);
    expect(out).toContain('migrates its embedded PostgreSQL at start');
  });

  it('names the database that it could not migrate, without its password', async () => {
    const env = { DATABASE_URL: 'postgres://me:secret@127.0.0.1:1/ledger' };
    const { code, out, err } = await runCli(['migrate', '--json'], { env });
    expect(code).toBe(1);
    expect(err).toContain('127.0.0.1:1/ledger');
    expect(out + err).not.toContain('secret');
    expect(JSON.parse(out)).toMatchObject({ error: { code: 'not_migrated' } });
  });

  it('prints every fault of the configuration', async () => {
    const { code, err } = await runCli(['check'], { env: { PORT: 'none', LOG_LEVEL: 'loud' } });
    expect(code).toBe(1);
    expect(err).toMatch(/^PORT: .*\nLOG_LEVEL: .*\n$/);
  });
});
