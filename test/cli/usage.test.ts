import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { runCli } from './terminal.ts';

const TXN = '7c0e6a52-8a0c-8f00-9a52-0123456789ab';

describe('wrong usage is exit code 2, a sentence and a usage line', () => {
  it.each([
    [['chekc'], 'there is no verb "chekc"; did you mean "check"?'],
    [['cals'], 'there is no verb "cals"; did you mean "calls"?'],
    [['zzzzzz'], 'there is no verb "zzzzzz"\n'],
    [['key'], 'key what? There is: key new'],
    [['key', 'old'], 'there is no verb "key old"; there is: key new'],
    [['calls', '--stat', 'held'], 'there is no --stat here; did you mean "--state"?'],
    [['calls', '--jsno'], 'there is no --jsno here; did you mean "--json"?'],
    [['calls', '-x'], 'there is no -x here'],
    [['calls', '--state', 'heldd'], '--state "heldd" is not one of held, ready'],
    [['calls', '--limit', '0'], '--limit "0" is not a number from 1 on'],
    [['calls', '--limit', '5', '--all'], '--limit and --all exclude one another'],
    [['calls', '--limit', '--all'], '--limit N: the value is missing'],
    [['calls', '--all=yes'], '--all takes no value'],
    [['calls', '--agent', 'a', '--agent', 'b'], '--agent is there twice'],
    [['calls', '--since', 'yesterday'], '--since "yesterday" is neither an age such as 24h nor a time'],
    [['calls', '--since', '2026-99-99'], '--since "2026-99-99" is neither'],
    [['calls', 'surplus'], '"surplus" is one argument too many'],
    [['call'], '<txn> is missing'],
    [['resolve', TXN, '--reason', 'I looked'], '--verdict applied|not_applied|retry is missing'],
    [['resolve', TXN, '--verdict', 'applied'], '--reason TEXT is missing'],
    [['resolve', TXN, '--verdict', 'applied', '--reason', ' '], '--reason is empty'],
    [
      ['resolve', TXN, '--verdict', 'maybe', '--reason', 'x'],
      '--verdict "maybe" is not one of applied, not_applied, retry',
    ],
    [
      ['resolve', TXN, '--verdict', 'retry', '--reason', 'x', '--result', '1'],
      '--result goes with --verdict applied only',
    ],
    [['resolve', TXN, '--verdict', 'applied', '--reason', 'x', '--result', '{'], '--result is not good JSON'],
    [['rollback', TXN], '--reason TEXT is missing (or add --dry-run'],
    [['rollback', TXN, '--reason', ' '], '--reason is empty'],
    [['rollback', '--dry-run'], '<saga> is missing'],
    [['sagas', '--state', 'done'], '--state "done" is not one of open, committed'],
    [['resume', TXN], '--reason TEXT is missing'],
    [['resume', TXN, '--waive', 'x', '--reason', 'x'], '--waive "x" is no txn'],
    [['resume', TXN, '--waive', TXN, TXN, '--reason', 'x'], 'is one argument too many'],
    [['close', TXN], '--reason TEXT is missing'],
    [['undo', TXN, '--reason', 'x', '--args', '[]'], '--args must be a JSON object'],
    [['approve', TXN], '--reason TEXT is missing'],
    [['approve', TXN, '--reason', 'fine'], 'add --yes, or --digest of what you saw'],
    [['approve', TXN, '--reason', 'fine', '--digest', 'abc'], '--digest is not 64 hex digits'],
    [['reject', TXN, '--reason', ' '], '--reason is empty'],
    [['approvals', '--state', 'held'], '--state "held" is not one of pending, approved'],
    [['freeze'], '--reason TEXT is missing'],
    [['freeze', '--agent', 'a', '--tool', 't', '--reason', 'x'], '--agent and --tool exclude one another'],
    [['breaker', 'payments', '--reason', 'x'], 'open or close is missing'],
    [['breaker', 'payments', 'opne', '--reason', 'x'], '"opne" is not one of open, close; did you mean "open"?'],
    [['breaker', 'payments', 'open'], '--reason TEXT is missing'],
    [['explain', 'policies', '--agent', 'a', '--tool', 't', '--remote'], '--remote goes without a directory'],
    [['explain', '--tool', 't'], '--agent AGENT is missing'],
    [['explain', '--agent', 'a', '--tool', 't', '--args', '{"a":1,"a":2}'], '"a" occurs twice'],
    [['explain', '--agent', 'a', '--tool', 't', '--args', '[]'], '--args must be a JSON object'],
    [['--verbose', 'calls'], '--verbose before the verb'],
    [['--json'], 'which verb?'],
    [['help', 'chekc'], 'did you mean "check"?'],
  ])('%j', async (argv, sentence) => {
    const env = { ONCEGATE_KEY: 'k', ONCEGATE_URL: 'http://127.0.0.1:1' };
    const { code, out, err } = await runCli(argv, { env });
    expect(err).toContain(sentence);
    expect(err).toMatch(/^oncegate: .*\nusage: oncegate .*\n$/);
    expect(code).toBe(2);
    if (!argv.includes('--json')) expect(out).toBe('');
  });

  it('also says so as JSON when asked to', async () => {
    const { code, out } = await runCli(['calls', '--json', '--stat', 'held']);
    expect(code).toBe(2);
    expect(JSON.parse(out)).toMatchObject({ error: { code: 'usage' } });
  });

  it('shows the verbs to whoever says none', async () => {
    const { code, out, err } = await runCli([]);
    expect([code, out]).toEqual([2, '']);
    expect(err).toContain('usage: oncegate <verb>');
  });
});

describe('help', () => {
  it('has a line for every verb, within 80 columns', async () => {
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
  ])('%j tells of one verb', async (argv) => {
    const { code, out } = await runCli(argv);
    expect(out).toMatch(/^usage: oncegate key new \[--json\]\n/);
    expect(code).toBe(0);
  });

  it('fits 80 columns for each verb, and cuts no option in two', async () => {
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
    expect(out).toContain('  --verdict applied|not_applied|retry  what you found out, or to send it once');
    expect((await runCli(['help', 'audit', 'verify'])).out).toContain('<file>             an export; - is standard');
  });

  it('is what --help alone means, and needs nothing that the verb needs', async () => {
    expect(await runCli(['--help'])).toEqual(await runCli(['help']));
    expect((await runCli(['resolve', '--help'])).code).toBe(0);
  });
});

describe('key new', () => {
  it('prints a key and the line that knows it', async () => {
    const { code, out, err } = await runCli(['key', 'new']);
    const [, key = '', digest] = /^(og_[\w-]{43})\nkeys: \["sha256:([0-9a-f]{64})"\]\n$/.exec(out) ?? [];
    expect(code).toBe(0);
    expect(createHash('sha256').update(key).digest('hex')).toBe(digest);
    expect(err).toContain('not shown again');
    expect((await runCli(['key', 'new'])).out).not.toBe(out);
  });

  it('is nothing but JSON with --json, wherever that stands', async () => {
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
  it('tells the version of the package', async () => {
    expect((await runCli(['version'])).out).toMatch(/^oncegate \d+\.\d+\.\d+\n$/);
    expect(await runCli(['--version'])).toEqual(await runCli(['version']));
    expect(JSON.parse((await runCli(['version', '--json'])).out)).toHaveProperty('version');
  });

  it('has nothing to migrate without a DATABASE_URL', async () => {
    const { code, out } = await runCli(['migrate']);
    expect(code).toBe(0);
    expect(out).toContain('the embedded PostgreSQL migrates itself at start');
  });

  it('says which database it could not migrate, and not its password', async () => {
    const env = { DATABASE_URL: 'postgres://me:secret@127.0.0.1:1/ledger' };
    const { code, out, err } = await runCli(['migrate', '--json'], { env });
    expect(code).toBe(1);
    expect(err).toContain('127.0.0.1:1/ledger');
    expect(out + err).not.toContain('secret');
    expect(JSON.parse(out)).toMatchObject({ error: { code: 'not_migrated' } });
  });

  it('tells what is wrong with the configuration', async () => {
    const { code, err } = await runCli(['check'], { env: { PORT: 'none', LOG_LEVEL: 'loud' } });
    expect(code).toBe(1);
    expect(err).toMatch(/^PORT: .*\nLOG_LEVEL: .*\n$/);
  });
});
