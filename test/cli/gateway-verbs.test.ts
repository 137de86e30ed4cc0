import { describe, expect, it } from 'vitest';
import { type CannedResponse, findClosedAddress, runCli, startCannedServer } from './terminal.ts';

const TXN = '7c0e6a52-8a0c-8f00-9a52-0123456789ab';

const CALL = {
  txn: TXN,
  agent: 'billing-bot-of-the-northern-region',
  tool: 'payments.charge_with_a_very_long_name',
  kind: 'key',
  state: 'in_doubt',
  attempts: 2,
  key: 'order-1',
  args: { amount: 100, note: 'word '.repeat(40).trim() },
  result: null,
  problem: { code: 'in_doubt', detail: 'no clear answer' },
  outcome: null,
  evidence: null,
  resolvedBy: null,
  contradiction: null,
  policyVersion: 'abc',
  rule: 'billing-bot rule 1 (policies/billing.yaml:12)',
  createdAt: '2026-01-01T00:00:00.000Z',
  settledAt: null,
  saga: null,
  receipt: { leaf: 'a'.repeat(64) },
  timeline: [
    { at: '2026-01-01T00:00:00.000Z', what: 'claimed' },
    { at: '2026-01-01T00:00:01.000Z', what: 'doubt', why: 'reset after the first byte', attempt: 1 },
  ],
};

function problem(status: number, code: string, members: object = {}): CannedResponse {
  const body = { title: 'A title', detail: 'a detail', status, code, retry: 'never', ...members };
  return { status, type: 'application/problem+json', body };
}

/** A server that lists `count` calls in pages of the requested size. */
function startPagedServer(count: number) {
  return startCannedServer(({ url }) => {
    const from = Number(url.searchParams.get('cursor') ?? 0);
    const to = Math.min(count, from + Number(url.searchParams.get('limit')));
    const items = Array.from({ length: to - from }, (_, index) => ({ ...CALL, key: `order-${from + index}` }));
    return { body: { items, cursor: to < count ? String(to) : null } };
  });
}

describe('calls', () => {
  it('sends the key and the filters', async () => {
    const { env, requests } = await startPagedServer(1);
    await runCli(['calls', '--state', 'in_doubt', '--agent', 'a b', '--tool', 't', '--since', '2026-01-31'], { env });
    expect(requests[0]?.authorization).toBe('Bearer og_person');
    expect(requests[0]?.url.pathname).toBe('/admin/calls');
    expect(Object.fromEntries(requests[0]?.url.searchParams ?? [])).toEqual({
      state: 'in_doubt',
      agent: 'a b',
      tool: 't',
      since: '2026-01-31T00:00:00.000Z',
      limit: '50',
    });
  });

  it('accepts an age for --since', async () => {
    const { env, requests } = await startPagedServer(0);
    await runCli(['calls', '--since', '24h'], { env });
    const age = Date.now() - Date.parse(requests[0]?.url.searchParams.get('since') ?? '');
    expect(Math.abs(age - 86_400_000)).toBeLessThan(60_000);
  });

  it('prints whole rows with tabs without a terminal', async () => {
    const { env } = await startPagedServer(2);
    const { code, out, err } = await runCli(['calls'], { env });
    const row = [TXN, 'in_doubt', CALL.agent, CALL.tool, CALL.createdAt].join('\t');
    expect(out).toBe(`${row}\n${row}\n`);
    expect([code, err]).toEqual([0, '']);
  });

  it.each([80, 100, undefined])('fits a terminal of %s columns without shortening a txn', async (columns) => {
    const { env } = await startPagedServer(3);
    const options = { env: { ...env, NO_COLOR: '1' }, isTty: true, ...(columns === undefined ? {} : { columns }) };
    const lines = (await runCli(['calls'], options)).out.trimEnd().split('\n');
    expect(lines).toHaveLength(4);
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(columns ?? 80);
    expect(lines[1]).toContain(`${TXN}  in_doubt  `);
    expect(lines[1]).toContain('…');
  });

  it.each([
    [[], 50, 1],
    [['--limit', '150'], 150, 2],
    [['--all'], 230, 3],
  ])('%j reads %i calls in %i pages', async (options, count, pageCount) => {
    const { env, requests } = await startPagedServer(230);
    const { out } = await runCli(['calls', ...options, '--json'], { env });
    const { items, cursor } = JSON.parse(out) as { items: object[]; cursor: string | null };
    expect([items.length, requests.length]).toEqual([count, pageCount]);
    expect(cursor).toBe(count === 230 ? null : String(count));
  });

  it('says on a terminal that there are more calls, or none', async () => {
    const more = await startPagedServer(51);
    expect((await runCli(['calls'], { env: more.env, isTty: true })).err).toContain('--all');
    const none = await startPagedServer(0);
    expect((await runCli(['calls'], { env: none.env, isTty: true })).out).toBe('No calls yet.\n');
    expect((await runCli(['calls'], { env: none.env })).out).toBe('');
  });

  it('escapes control characters in the names of agents and tools', async () => {
    const hostile = { ...CALL, agent: 'a\u001b[2Jb\tc\nd\u202e', tool: '\u009b31m' };
    const { env } = await startCannedServer(() => ({ body: { items: [hostile], cursor: null } }));
    for (const isTty of [true, false]) {
      const { out } = await runCli(['calls'], { env: { ...env, NO_COLOR: '1' }, isTty });
      for (const character of '\u001b\u009b\u202e') expect(out).not.toContain(character);
      expect(out.trimEnd().split('\n')).toHaveLength(isTty ? 2 : 1);
      if (!isTty) expect(out.split('\t')).toHaveLength(5);
    }
  });
});

describe('call', () => {
  it('shows all fields, the timeline and how to end a doubt, in 80 columns', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: CALL }));
    const { code, out } = await runCli(['call', TXN.toUpperCase()], { env: { ...env, NO_COLOR: '1' }, isTty: true });
    expect(requests[0]?.url.pathname).toBe(`/admin/calls/${TXN}`);
    expect(code).toBe(0);
    for (const line of out.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
    expect(out).toMatch(/^state +in_doubt$/m);
    expect(out).toMatch(/^problem +in_doubt: no clear answer$/m);
    expect(out).toMatch(/^2026-01-01T00:00:01.000Z +doubt why=reset after the first byte attempt=1$/m);
    expect(out).toContain(`oncegate resolve ${TXN}`);
  });

  it('prints one name and value per line without a terminal', async () => {
    const { env } = await startCannedServer(() => ({ body: CALL }));
    const { out } = await runCli(['call', TXN], { env });
    for (const line of out.trimEnd().split('\n')) expect(line.split('\t')).toHaveLength(2);
    expect(out).toContain(`args\t${JSON.stringify(CALL.args)}\n`);
  });

  it('prints numbers as the upstream wrote them', async () => {
    const text = JSON.stringify({ ...CALL, state: 'succeeded' }).replace(
      '"result":null',
      '"result":{"id":9007199254740993,"price":1.10,"text":"9007199254740993","top":1e400}',
    );
    const { env } = await startCannedServer(() => ({ body: text }));
    const { out: json } = await runCli(['call', TXN, '--json'], { env });
    expect(json).toContain('"id": 9007199254740993,');
    expect(json).toContain('"price": 1.10,');
    expect(json).toContain('"text": "9007199254740993"');
    const { out } = await runCli(['call', TXN], { env });
    expect(out).toContain('result\t{"id":9007199254740993,"price":1.10,"text":"9007199254740993","top":1e400}\n');
  });

  it('exits with code 1 for an unknown call, and never puts anything but a txn into a path', async () => {
    const { env, requests } = await startCannedServer(() => problem(404, 'not_found'));
    const { code, err } = await runCli(['call', TXN], { env });
    expect(err).toBe('A title. a detail. (not_found)\n"oncegate calls" lists the calls.\n');
    expect(code).toBe(1);
    for (const txn of ['../policies', '..', 'x']) expect((await runCli(['call', txn], { env })).code).toBe(1);
    expect(requests).toHaveLength(1);
  });
});

describe('resolve', () => {
  it('sends the verdict with its reason', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: { ...CALL, state: 'succeeded' } }));
    const argv = ['resolve', TXN, '--verdict', 'applied', '--reason', 'seen in the books', '--result', '{"id":"ch_1"}'];
    const { code, out } = await runCli([...argv, '--sender-is-dead'], { env });
    expect(requests[0]).toMatchObject({ method: 'POST', authorization: 'Bearer og_person' });
    expect(requests[0]?.url.pathname).toBe(`/admin/calls/${TXN}/resolve`);
    expect(JSON.parse(requests[0]?.body ?? '')).toEqual({
      verdict: 'applied',
      reason: 'seen in the books',
      result: { id: 'ch_1' },
      senderIsDead: true,
    });
    expect(out).toBe(`${TXN}\tsucceeded\n`);
    expect(code).toBe(0);
    const { out: json } = await runCli([...argv, '--json'], { env });
    expect(JSON.parse(json)).toMatchObject({ txn: TXN, state: 'succeeded' });
  });

  it('names the option that a refused request needs', async () => {
    const argv = ['resolve', TXN, '--verdict', 'retry', '--reason', 'x'];
    const alive = await startCannedServer(() =>
      problem(409, 'conflict', { detail: 'Say so with "senderIsDead": true.' }),
    );
    const { code, err } = await runCli(argv, { env: alive.env });
    expect(err).toContain('add --sender-is-dead');
    expect(code).toBe(1);
    const settled = await startCannedServer(() => problem(409, 'conflict'));
    expect((await runCli(argv, { env: settled.env })).err).not.toContain('--sender-is-dead');
  });
});

describe('a gateway that fails', () => {
  it.each([
    [problem(401, 'unauthenticated'), 'Set ONCEGATE_KEY'],
    [problem(403, 'forbidden'), 'roles'],
    [problem(400, 'malformed', { faults: ['limit: too large'] }), '  limit: too large'],
    [
      { ...problem(429, 'rate_limited', { retry: 'after_delay' }), headers: { 'retry-after': '7' } },
      'Try again in 7 s.',
    ],
    [{ status: 502, type: 'text/html', body: '<h1>Bad gateway</h1>' }, 'Check ONCEGATE_URL.'],
    [{ status: 200, type: 'text/html', body: '<h1>Hello</h1>' }, 'Check ONCEGATE_URL.'],
    [{ status: 302, headers: { location: 'http://elsewhere.example/' }, body: {} }, 'Check ONCEGATE_URL.'],
    [{ status: 200, body: { hello: 'world' } }, 'returned no list of calls'],
  ] as [CannedResponse, string][])('%j', async (answer, sentence) => {
    const { env } = await startCannedServer(() => answer);
    const { code, out, err } = await runCli(['calls'], { env });
    expect([code, out]).toEqual([1, '']);
    expect(err).toContain(sentence);
    const { out: json } = await runCli(['calls', '--json'], { env });
    expect(JSON.parse(json)).toHaveProperty('error.message');
  });

  it('cannot be reached', async () => {
    const url = await findClosedAddress();
    const { code, err } = await runCli(['calls'], { env: { ONCEGATE_URL: url, ONCEGATE_KEY: 'k' } });
    expect(err).toBe(`There is no gateway at ${url}. Start one with "npm start", or set ONCEGATE_URL.\n`);
    expect(code).toBe(1);
  });

  it('is not called without a key, with a malformed key, or with a malformed URL', async () => {
    expect((await runCli(['calls'])).err).toContain('oncegate key new');
    expect((await runCli(['calls'], { env: { ONCEGATE_KEY: 'a\nb' } })).code).toBe(1);
    expect((await runCli(['calls'], { env: { ONCEGATE_KEY: 'k', ONCEGATE_URL: 'localhost:8080' } })).code).toBe(2);
  });
});

it('openapi needs no key, and prints JSON with and without --json', async () => {
  const { env, requests } = await startCannedServer(() => ({ body: { openapi: '3.1.0' } }));
  const { ONCEGATE_URL } = env;
  const { code, out } = await runCli(['openapi'], { env: { ONCEGATE_URL } });
  expect(JSON.parse(out)).toEqual({ openapi: '3.1.0' });
  expect([code, requests[0]?.authorization, requests[0]?.url.pathname]).toEqual([0, undefined, '/openapi.json']);
  expect((await runCli(['openapi', '--json'], { env })).out).toBe(out);
  expect(requests[1]?.authorization).toBe('Bearer og_person');
});

it("openapi falls back to the public document when the key is not an agent's", async () => {
  const { env } = await startCannedServer(({ authorization }) =>
    authorization === undefined ? { body: { openapi: '3.1.0' } } : problem(401, 'unauthenticated'),
  );
  const { code, out, err } = await runCli(['openapi'], { env });
  expect(JSON.parse(out)).toEqual({ openapi: '3.1.0' });
  expect(err).toContain('the public document');
  expect(code).toBe(0);
});
