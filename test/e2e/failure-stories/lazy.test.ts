import { exportSPKI, generateKeyPair, SignJWT, UnsecuredJWT } from 'jose';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { RunHolder } from '../../controls/run-holder.ts';
import { TestSaga } from '../../sagas/saga.ts';
import { AGENT_KEY, type CallOptions, OTHER_AGENT_KEY, type Reply, sha256Hex } from '../../support/gateway.ts';
import { type IssuerKey, useIssuer } from '../../support/issuer.ts';
import { sendRaw } from '../../support/raw.ts';
import { uniqueId } from '../../support/unique-id.ts';
import { useGateway } from '../../support/use-gateway.ts';
import { buildUncooperativePolicies } from './lazy-policies.ts';

let id = '';

const MAX_KEYS = 10_000;

const issuer = useIssuer();
let pair: IssuerKey;
beforeAll(async () => {
  pair = await issuer.addKey('k');
});
const { upstream, database, gateway } = useGateway({
  policies: (url) => buildUncooperativePolicies(url, issuer.url),
});
beforeEach(async () => {
  id = uniqueId('lazy');
  await upstream.reset();
});

const charge = (options: CallOptions = {}, args: object = {}) =>
  gateway.call('world.charge', { id, card: 'c', ...args }, options);
const countLocks = async () => (await database.query<{ n: number }>('select count(*)::int as n from locks'))[0]?.n;

/** After each test: every sent request carries the lock token that the ledger has for its call, and no token repeats. */
afterEach(async () => {
  const requests = await upstream.requests();
  const rows = await database.query<{ txn: string; lock_token: string }>(
    'select txn, lock_token from open_calls union all select txn, lock_token from settlements',
  );
  const tokens = new Map(rows.map((row) => [row.txn, row.lock_token]));
  for (const { headers } of requests)
    expect(headers['oncegate-lock-token']).toBe(tokens.get(String(headers['oncegate-txn'])));
  const sent = requests.map(({ headers }) => Number(headers['oncegate-lock-token']));
  expect(sent.every((token) => token > 0)).toBe(true);
  expect(new Set(sent).size).toBe(sent.length);
  expect(await countLocks()).toBe(0);
});

describe('a lazy agent', () => {
  it(`that needs ${MAX_KEYS} locks for one call gets all of them or none`, async () => {
    await upstream.plan({ match: { id }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const keys = Array.from({ length: MAX_KEYS }, (_, i) => `thing-${i}`);
    let started = 0;
    const lockAll = async (): Promise<Reply> => {
      started = performance.now();
      const reply = await gateway.call('world.many', { id, keys }, { key: id });
      // On a busy machine the ledger may be too slow for so many locks, so a 503 is repeated.
      return reply.status === 503 ? lockAll() : reply;
    };
    const many = lockAll();
    await upstream.awaitEvent('there');
    const tookMs = Math.round(performance.now() - started);
    process.stdout.write(`${MAX_KEYS} keys were locked, and the request had arrived, after ${tookMs} ms\n`);
    expect(await countLocks()).toBe(MAX_KEYS);

    const callMany = (wanted: readonly string[], headers: Record<string, string> = {}) =>
      gateway.call('world.many', { id: `${id}-late`, keys: wanted }, { agentKey: OTHER_AGENT_KEY, headers });
    const noWait = { prefer: 'wait=0' };
    expect((await callMany(['thing-0'], noWait)).body).toMatchObject({ code: 'locked', resource: 'key/thing-0' });
    expect((await callMany(['free', `thing-${MAX_KEYS - 1}`], noWait)).body.code).toBe('locked');
    expect((await callMany(['free'])).status).toBe(200);
    await upstream.release('go');
    expect((await many).status).toBe(200);
    expect((await callMany(['free', 'thing-0', `thing-${MAX_KEYS - 1}`])).status).toBe(200);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('that asks for no locks gets the locks of the tool, so that two calls never overlap', async () => {
    await upstream.plan({ match: { id }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const first = charge();
    await upstream.awaitEvent('there');
    for (const agentKey of [AGENT_KEY, OTHER_AGENT_KEY]) {
      const second = await charge({ agentKey, headers: { prefer: 'wait=0' } }, { id: `${id}-2` });
      expect(second.body).toMatchObject({ status: 409, code: 'locked' });
    }
    await upstream.release('go');
    expect((await first).status).toBe(200);
    const again = await charge({}, { id: `${id}-2` });
    const [before, after] = await Promise.all(
      [await first, again].map(async ({ body }) => (await gateway.get(`/v1/calls/${body.txn}`)).body.lockToken),
    );
    expect(after).toBeGreaterThan(before);
  });

  it('that leaves out the resource to lock is refused', async () => {
    for (const args of [{ card: undefined }, { card: '' }, { card: null }])
      expect((await charge({}, args)).body.code).toBe('invalid_arguments');
    for (const keys of [[''], ['a', ''], Array.from({ length: MAX_KEYS + 1 }, (_, i) => String(i))])
      expect((await gateway.call('world.many', { id, keys })).body.code).toBe('invalid_arguments');
    expect(await upstream.requests()).toEqual([]);
  });

  it('that leaves out its run, its epoch or both is refused', async () => {
    const { headers } = await RunHolder.take(gateway, id);
    const inRun = (sent: Record<string, string>) => gateway.call('world.in_run', { id, card: 'c' }, { headers: sent });
    const { 'oncegate-run': run = '', 'oncegate-epoch': epoch = '' } = headers;
    expect((await inRun({ 'oncegate-run': run })).body.code).toBe('malformed');
    expect((await inRun({ 'oncegate-epoch': epoch })).body.code).toBe('malformed');
    expect((await inRun({})).body.code).toBe('denied');
    expect(await upstream.requests()).toEqual([]);
    expect((await inRun(headers)).status).toBe(200);
  });
});

describe('a forging agent', () => {
  it('that invents epochs is refused', async () => {
    const old = await RunHolder.take(gateway, id);
    const current = await RunHolder.take(gateway, id);
    const at = (epoch: string) =>
      gateway.call('world.in_run', { id, card: 'c' }, { headers: { ...current.headers, 'oncegate-epoch': epoch } });
    for (const epoch of [String(old.took.epoch), '0', '3', '2147483647', '2147483648', '999999999999999'])
      expect((await at(epoch)).body, epoch).toMatchObject({ status: 409, code: 'fenced' });
    for (const epoch of ['-1', '1.5', '2e0', '0x2', 'two', '9'.repeat(16), '2, 2'])
      expect((await at(epoch)).body, epoch).toMatchObject({ status: 400, code: 'malformed' });
    expect(await upstream.requests()).toEqual([]);
    expect((await at(String(current.took.epoch))).status).toBe(200);
  });

  it('that sends its own lock tokens has them ignored', async () => {
    const forged = {
      'oncegate-lock-token': '999999',
      'x-lock-token': '999999',
      'lock-token': '<urn:uuid:1>',
      'if-match': '9',
    };
    const answer = await charge({ headers: forged });
    expect(answer.status).toBe(200);
    const [request] = await upstream.requests(id);
    expect(Object.keys(request?.headers ?? {})).not.toContain('x-lock-token');
    expect(Object.keys(request?.headers ?? {})).not.toContain('if-match');
    expect(request?.headers['oncegate-lock-token']).not.toBe('999999');
    expect((await charge({}, { 'oncegate-lock-token': '999999' })).body.code).toBe('invalid_arguments');
    expect((await gateway.get(`/v1/calls/${answer.body.txn}`)).body.lockToken).toBe(
      Number(request?.headers['oncegate-lock-token']),
    );
  });

  const badKeys: readonly (readonly [string, string])[] = [
    ['a key cut short', AGENT_KEY.slice(0, -1)],
    ['a key with more behind it', `${AGENT_KEY}x`],
    ['a key in capitals', AGENT_KEY.toUpperCase()],
    ['the hash of a key', sha256Hex(AGENT_KEY)],
    ['the hash as it stands in the policies', `sha256:${sha256Hex(AGENT_KEY)}`],
    ['a key in quotes', `"${AGENT_KEY}"`],
    ['two keys in one', `${AGENT_KEY}, Bearer ${OTHER_AGENT_KEY}`],
    ['two keys with a comma', `${AGENT_KEY},${OTHER_AGENT_KEY}`],
    ['nothing', ''],
    ['the name of an agent', 'lazy'],
    ['null', 'null'],
  ];
  it.each(badKeys)('that sends %s as its key is refused', async (_what, agentKey) => {
    expect((await charge({ agentKey })).body).toMatchObject({ status: 401, code: 'unauthenticated' });
    expect(await upstream.requests()).toEqual([]);
  });

  it('that sends its key in another place, or two keys, is refused', async () => {
    const body = JSON.stringify({ id, card: 'c' });
    const postRaw = async (path: string, ...headers: string[]) => {
      const head = [`POST ${path} HTTP/1.1`, 'Host: gateway', ...headers, 'Content-Type: application/json'];
      const text = await sendRaw(gateway.port, `${head.join('\r\n')}\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      return Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]);
    };
    const path = '/v1/tools/world.charge';
    expect(await postRaw(`${path}?access_token=${AGENT_KEY}`)).toBe(401);
    expect(await postRaw(path, `X-Api-Key: ${AGENT_KEY}`)).toBe(401);
    expect(await postRaw(path, `Cookie: authorization=Bearer ${AGENT_KEY}`)).toBe(401);
    expect(await postRaw(path, `Proxy-Authorization: Bearer ${AGENT_KEY}`)).toBe(401);
    expect(await postRaw(path, `Authorization: Basic ${btoa(`lazy:${AGENT_KEY}`)}`)).toBe(401);
    expect(await postRaw(path, 'Authorization: Bearer nobody', `Authorization: Bearer ${AGENT_KEY}`)).toBe(401);
    expect(await postRaw(path, `Authorization: Bearer ${AGENT_KEY}`, `Authorization: Bearer ${OTHER_AGENT_KEY}`)).toBe(
      400,
    );
    expect(await upstream.requests()).toEqual([]);
    expect(await postRaw(path, `Authorization: Bearer ${AGENT_KEY}`)).toBe(200);
  });

  it('that signs its own tokens is refused', async () => {
    const now = Math.floor(Date.now() / 1000);
    const claims = { sub: 'biller', iss: issuer.url, aud: 'gate', exp: now + 300 };
    const sign = (more: object, alg: string, key: Parameters<SignJWT['sign']>[0]) =>
      new SignJWT({ ...claims, ...more }).setProtectedHeader({ alg, kid: 'k' }).sign(key);
    const stranger = await generateKeyPair('RS256');
    const publicKey = new TextEncoder().encode(await exportSPKI(pair.publicKey));
    const good = await sign({}, 'RS256', pair.privateKey);
    const [head, , signature] = good.split('.');
    const forged: Record<string, string> = {
      'no algorithm': new UnsecuredJWT(claims).encode(),
      'no signature': `${good.split('.').slice(0, 2).join('.')}.`,
      'another key': await sign({}, 'RS256', stranger.privateKey),
      'the public key as a secret': await sign({}, 'HS256', publicKey),
      expired: await sign({ exp: now - 90 }, 'RS256', pair.privateKey),
      'another audience': await sign({ aud: 'elsewhere' }, 'RS256', pair.privateKey),
      'another issuer': await sign({ iss: 'http://127.0.0.1:1' }, 'RS256', pair.privateKey),
      'another subject': await sign({ sub: 'nobody' }, 'RS256', pair.privateKey),
      'other claims under a good signature': `${head}.${btoa(JSON.stringify({ ...claims, sub: 'root' })).replaceAll('=', '')}.${signature}`,
    };
    for (const [what, token] of Object.entries(forged))
      expect((await charge({ agentKey: token })).body, what).toMatchObject({ status: 401, code: 'unauthenticated' });
    expect(await upstream.requests()).toEqual([]);
    expect((await charge({ agentKey: good })).status).toBe(200);
  });
});

describe('an impostor', () => {
  const mine = { agentKey: AGENT_KEY };
  const expectNotFound = (reply: Reply) => expect(reply.body).toMatchObject({ status: 404, code: 'not_found' });

  it('cannot use the run of another agent', async () => {
    const theirs = await RunHolder.take(gateway, id, '', OTHER_AGENT_KEY);
    const stranger = new RunHolder(gateway, theirs.took, AGENT_KEY);
    expectNotFound(await stranger.call('world.in_run', { id, card: 'c' }));
    expectNotFound(await stranger.call('world.charge', { id, card: 'c' }));
    expectNotFound(await stranger.checkpoint({ mine: true }));
    for (const verb of ['heartbeat', 'finish'] as const) expectNotFound(await stranger.postAction(verb));
    expectNotFound(await stranger.read());
    expectNotFound(await stranger.history());
    expect(await upstream.requests()).toEqual([]);
    expect((await theirs.read()).body).toMatchObject({ epoch: 1, checkpoint: null });
    expect((await theirs.call('world.charge', { id, card: 'c' })).status).toBe(200);
  });

  it('cannot add a step to the saga of another agent, commit it or roll it back', async () => {
    const theirs = await TestSaga.open(gateway, {}, OTHER_AGENT_KEY);
    expectNotFound(await charge({ ...mine, headers: { 'oncegate-saga': theirs.id } }));
    for (const [verb, body] of [
      ['commit', {}],
      ['rollback', { reason: 'mine' }],
      ['savepoints', { name: 'x' }],
    ] as const)
      expectNotFound(await gateway.post(`/v1/sagas/${theirs.id}/${verb}`, body, AGENT_KEY));
    expectNotFound(await gateway.get(`/v1/sagas/${theirs.id}`));
    expect(await theirs.read()).toMatchObject({ state: 'open', steps: [] });
    expect(await upstream.requests()).toEqual([]);
  });

  it('cannot read the call of another agent by its key or its txn', async () => {
    const theirs = await charge({ agentKey: OTHER_AGENT_KEY, key: 'shared' });
    expectNotFound(await gateway.get(`/v1/calls/${theirs.body.txn}`));
    expectNotFound(await gateway.post(`/v1/calls/${theirs.body.txn}/cancel`, {}, AGENT_KEY));
    const own = await charge({ ...mine, key: 'shared' });
    expect(own.body).toMatchObject({ replayed: false, state: 'succeeded' });
    expect(own.body.txn).not.toBe(theirs.body.txn);
    expect(await upstream.requests(id)).toHaveLength(2);
  });

  it('cannot use the admin API', async () => {
    for (const path of ['locks', 'calls', 'agents', 'policies', 'approvals'])
      expect((await gateway.get(`/admin/${path}`)).body.code, path).toBe('forbidden');
    expect((await gateway.post('/admin/freeze', { reason: 'x' }, AGENT_KEY)).status).toBe(403);
    expect((await charge()).status).toBe(200);
  });
});
