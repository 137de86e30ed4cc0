import { once } from 'node:events';
import { connect } from 'node:net';
import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const { upstream, gateway } = useGateway();
beforeEach(() => {
  id = uniqueId('header');
});

interface RawReply {
  readonly status: number;
  readonly head: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly body: any;
}

/** Sends header lines as bytes, because `fetch` refuses some of them. */
async function postRaw(lines: string[], body = JSON.stringify({ id })): Promise<RawReply> {
  const socket = connect(gateway.port, '127.0.0.1');
  await once(socket, 'connect');
  const head = [
    'POST /v1/tools/world.keyed HTTP/1.1',
    'Host: gateway',
    `Authorization: Bearer ${AGENT_KEY}`,
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
    ...lines,
  ];
  socket.write(`${head.join('\r\n')}\r\n\r\n${body}`, 'latin1');
  const chunks: Buffer[] = [];
  for await (const chunk of socket) chunks.push(chunk as Buffer);
  const text = Buffer.concat(chunks).toString('utf8');
  const [answer = '', ...rest] = text.split('\r\n\r\n');
  const json = rest.join('\r\n\r\n');
  return { status: Number(answer.split(' ')[1]), head: answer, body: json === '' ? null : JSON.parse(json) };
}

const visible = Array.from({ length: 94 }, (_, i) => String.fromCharCode(0x21 + i)).join('');

describe('Idempotency-Key', () => {
  it('means the same bare and quoted', async () => {
    const bare = await gateway.call('world.keyed', { id }, { key: id });
    const quoted = await gateway.call('world.keyed', { id }, { key: `"${id}"` });
    expect(quoted.body).toEqual({ ...bare.body, replayed: true });
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('may contain escaped quotes and backslashes inside quotes', async () => {
    const bare = await gateway.call('world.keyed', { id }, { key: `a"${id}\\` });
    const quoted = await gateway.call('world.keyed', { id }, { key: `"a\\"${id}\\\\"` });
    expect(quoted.body.txn).toBe(bare.body.txn);
  });

  it('is case-sensitive and may contain every visible character', async () => {
    const key = `k${visible.slice(1)}`;
    const lower = await gateway.call('world.keyed', { id }, { key });
    expect(lower.status).toBe(200);
    const other = await gateway.call('world.keyed', { id }, { key: key.replace('k', 'K') });
    expect(other.body.txn).not.toBe(lower.body.txn);
  });

  it('may have 1 to 255 characters', async () => {
    expect((await gateway.call('world.keyed', { id: 'one' }, { key: 'x' })).status).toBe(200);
    expect((await gateway.call('world.keyed', { id }, { key: id.padEnd(255, 'x') })).status).toBe(200);
    expect((await gateway.call('world.keyed', { id }, { key: `"${id.padEnd(255, 'x')}"` })).body.replayed).toBe(true);
  });

  it.each<[string, string]>([
    ['256 characters', 'x'.repeat(256)],
    ['256 characters in quotes', `"${'x'.repeat(256)}"`],
    ['a space', 'a b'],
    ['a space in quotes', '"a b"'],
    ['a tab', 'a\tb'],
    ['an umlaut', 'schl\u00fcssel'],
    ['no characters', ''],
    ['empty quotes', '""'],
    ['one quote', '"'],
    ['quotes that do not close', '"abc'],
    ['something after the quotes', '"abc"d'],
    ['parameters after the quotes', '"abc";v=1'],
    ['an unknown escape', '"a\\b"'],
  ])('is refused with %s, and nothing is sent', async (_name, key) => {
    const refused = await postRaw([`Idempotency-Key: ${key}`]);
    expect(refused.status).toBe(400);
    expect(refused.body).toMatchObject({ code: 'malformed', retry: 'never', status: 400 });
    expect(refused.body.detail).toMatch(/Idempotency-Key/);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it.each(['another', 'the same'])('is refused if it appears twice in one request, the second %s', async (second) => {
    const refused = await postRaw([`Idempotency-Key: ${id}`, `idempotency-key: ${second === 'another' ? 'b' : id}`]);
    expect(refused.status).toBe(400);
    expect(refused.body).toMatchObject({ code: 'malformed' });
    expect(await upstream.requests(id)).toEqual([]);
    expect((await postRaw([`Idempotency-Key: ${id}`])).body).toMatchObject({ state: 'succeeded', replayed: false });
  });
});

describe('Authorization', () => {
  it('is refused if it appears twice in one request', async () => {
    expect((await postRaw([`Authorization: Bearer ${AGENT_KEY}`])).status).toBe(400);
  });
});

describe('Prefer', () => {
  const slow = async () => {
    await upstream.plan({ match: { id }, do: [{ wait: id }, 'apply'] });
  };

  it.each(['wait=0', 'respond-async', 'WAIT=0', 'foo, wait=0', 'return=minimal; x=y, wait=0', 'wait="0"', 'wait = 0'])(
    '%s answers 202 at once, with a Location',
    async (prefer) => {
      await slow();
      const first = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer } });
      expect(first.status).toBe(202);
      expect(first.headers.get('location')).toBe(`/v1/calls/${first.body.txn}`);
      expect(first.headers.get('retry-after')).toMatch(/^\d+$/);
      expect(first.headers.get('oncegate-state')).toBe('sending');
      expect(first.headers.get('oncegate-txn')).toBe(first.body.txn);
      expect(first.body).toMatchObject({ state: 'sending', replayed: false, result: null });

      const again = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer } });
      expect(again.status).toBe(409);
      expect(again.body).toMatchObject({ code: 'in_progress', retry: 'same_key', txn: first.body.txn });
      expect(again.headers.get('retry-after')).toMatch(/^\d+$/);

      const waiting = gateway.get(`${first.headers.get('location')}?wait=20`);
      await upstream.release(id);
      const done = await waiting;
      expect(done.status).toBe(200);
      expect(done.body).toMatchObject({ state: 'succeeded', result: { t: id } });
      expect(await upstream.effects(id)).toHaveLength(1);
    },
  );

  it.each([
    'wait=20',
    'respond-async, wait=20',
    'wait=20, respond-async',
    'wait=20, wait=0',
    'wait=99999',
    'foo=bar',
    '',
  ])('%j waits for the answer', async (prefer) => {
    await slow();
    const answer = gateway.call('world.keyed', { id }, { key: id, headers: { prefer } });
    await upstream.awaitEvent(`received:${id}`);
    await upstream.release(id);
    expect((await answer).status).toBe(200);
  });

  it('wait=1 waits one second and no longer', async () => {
    await slow();
    const from = performance.now();
    const answer = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer: 'wait=1' } });
    expect(answer.status).toBe(202);
    expect(performance.now() - from).toBeGreaterThan(950);
    expect(performance.now() - from).toBeLessThan(1_900);
    await upstream.release(id);
  });

  it.each(['wait', 'wait=', 'wait=soon', 'wait=-1', 'wait=1.5', 'wait=1e3', 'wait=99999999999'])(
    '%s is malformed',
    async (prefer) => {
      const refused = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer } });
      expect(refused.status).toBe(400);
      expect(refused.body).toMatchObject({ code: 'malformed' });
      expect(await upstream.requests(id)).toEqual([]);
    },
  );

  it('has the same rules as ?wait', async () => {
    const { txn } = (await gateway.call('world.keyed', { id }, { key: id })).body;
    for (const wait of ['', 'x', '-1', '1.5'])
      expect((await gateway.get(`/v1/calls/${txn}?wait=${wait}`)).status).toBe(400);
    expect((await gateway.get(`/v1/calls/${txn}?wait=1&wait=2`)).status).toBe(400);
    expect((await gateway.get(`/v1/calls/${txn}?wait=0`)).status).toBe(200);
  });
});

describe('Oncegate-Dry-Run', () => {
  it.each(['1', 'true', '?2', '', 'yes'])('%j is malformed, and nothing is sent', async (value) => {
    const refused = await gateway.call('world.keyed', { id }, { key: id, headers: { 'oncegate-dry-run': value } });
    expect(refused.status).toBe(400);
    expect(refused.body).toMatchObject({ code: 'malformed' });
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('?0 makes a normal call', async () => {
    const answer = await gateway.call('world.keyed', { id }, { key: id, headers: { 'oncegate-dry-run': '?0' } });
    expect(answer.body).toMatchObject({ state: 'succeeded' });
  });
});

describe('a malformed control header', () => {
  it.each(['oncegate-saga', 'oncegate-depends-on', 'oncegate-run', 'oncegate-epoch', 'oncegate-undo'])(
    'is refused rather than ignored: %s',
    async (name) => {
      const refused = await gateway.call('world.keyed', { id }, { key: id, headers: { [name]: '1' } });
      expect(refused.status).toBe(400);
      expect(await upstream.requests(id)).toEqual([]);
    },
  );
});

describe('a request that Node cannot parse', () => {
  it('is answered with a problem document', async () => {
    const refused = await postRaw(['Idempotency-Key: a\x7fb']);
    expect(refused.status).toBe(400);
    expect(refused.head).toMatch(/content-type: application\/problem\+json/i);
    expect(refused.body).toMatchObject({ code: 'malformed', status: 400, retry: 'never' });
    const large = await postRaw([`X-Large: ${'x'.repeat(40_000)}`]);
    expect(large.status).toBe(431);
    expect(await upstream.requests(id)).toEqual([]);
  });
});
