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

const MANY = 10_000;

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
const locked = async () => (await database.query<{ n: number }>('select count(*)::int as n from locks'))[0]?.n;

/** Every request that went out carries the token of its own call's locks, as the ledger has it, and no two the same. */
afterEach(async () => {
  const requests = await upstream.requests();
  const rows = await database.query<{ txn: string; lock_token: string }>('select txn, lock_token from calls');
  const tokens = new Map(rows.map((row) => [row.txn, row.lock_token]));
  for (const { headers } of requests)
    expect(headers['oncegate-lock-token']).toBe(tokens.get(String(headers['oncegate-txn'])));
  const sent = requests.map(({ headers }) => Number(headers['oncegate-lock-token']));
  expect(sent.every((token) => token > 0)).toBe(true);
  expect(new Set(sent).size).toBe(sent.length);
  expect(await locked()).toBe(0);
});

describe('the lazy one', () => {
  it(`asks for ${MANY} things at once, and has all of them or none`, async () => {
    await upstream.plan({ match: { id }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const keys = Array.from({ length: MANY }, (_, i) => `thing-${i}`);
    let started = 0;
    const ask = async (): Promise<Reply> => {
      started = performance.now();
      const reply = await gateway.call('world.many', { id, keys }, { key: id });
      // On a machine that is busy with something else the ledger may be too slow for it: it is asked for again.
      return reply.status === 503 ? ask() : reply;
    };
    const many = ask();
    await upstream.awaitEvent('there');
    const tookMs = Math.round(performance.now() - started);
    process.stdout.write(`${MANY} keys were locked, and the request had arrived, after ${tookMs} ms\n`);
    expect(await locked()).toBe(MANY);

    const wants = (wanted: readonly string[], headers: Record<string, string> = {}) =>
      gateway.call('world.many', { id: `${id}-late`, keys: wanted }, { agentKey: OTHER_AGENT_KEY, headers });
    const now = { prefer: 'wait=0' };
    expect((await wants(['thing-0'], now)).body).toMatchObject({ code: 'locked', resource: 'key/thing-0' });
    expect((await wants(['free', `thing-${MANY - 1}`], now)).body.code).toBe('locked');
    expect((await wants(['free'])).status).toBe(200);
    await upstream.release('go');
    expect((await many).status).toBe(200);
    expect((await wants(['free', 'thing-0', `thing-${MANY - 1}`])).status).toBe(200);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('asks for nothing, and has its locks all the same: two of it never meet', async () => {
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

  it('leaves out what names the thing: what cannot be locked is not sent', async () => {
    for (const args of [{ card: undefined }, { card: '' }, { card: null }])
      expect((await charge({}, args)).body.code).toBe('invalid_arguments');
    for (const keys of [[''], ['a', ''], Array.from({ length: MANY + 1 }, (_, i) => String(i))])
      expect((await gateway.call('world.many', { id, keys })).body.code).toBe('invalid_arguments');
    expect(await upstream.requests()).toEqual([]);
  });

  it('leaves out its run, its epoch or both', async () => {
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

describe('the forger', () => {
  it('invents epochs', async () => {
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

  it('brings tokens of its own making, which nobody reads', async () => {
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

  const bad: readonly (readonly [string, string])[] = [
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
  it.each(bad)('comes with %s', async (_what, agentKey) => {
    expect((await charge({ agentKey })).body).toMatchObject({ status: 401, code: 'unauthenticated' });
    expect(await upstream.requests()).toEqual([]);
  });

  it('brings a key where none is looked for, or two where one belongs', async () => {
    const body = JSON.stringify({ id, card: 'c' });
    const ask = async (path: string, ...headers: string[]) => {
      const head = [`POST ${path} HTTP/1.1`, 'Host: gateway', ...headers, 'Content-Type: application/json'];
      const text = await sendRaw(gateway.port, `${head.join('\r\n')}\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      return Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]);
    };
    const path = '/v1/tools/world.charge';
    expect(await ask(`${path}?access_token=${AGENT_KEY}`)).toBe(401);
    expect(await ask(path, `X-Api-Key: ${AGENT_KEY}`)).toBe(401);
    expect(await ask(path, `Cookie: authorization=Bearer ${AGENT_KEY}`)).toBe(401);
    expect(await ask(path, `Proxy-Authorization: Bearer ${AGENT_KEY}`)).toBe(401);
    expect(await ask(path, `Authorization: Basic ${btoa(`lazy:${AGENT_KEY}`)}`)).toBe(401);
    expect(await ask(path, 'Authorization: Bearer nobody', `Authorization: Bearer ${AGENT_KEY}`)).toBe(401);
    expect(await ask(path, `Authorization: Bearer ${AGENT_KEY}`, `Authorization: Bearer ${OTHER_AGENT_KEY}`)).toBe(400);
    expect(await upstream.requests()).toEqual([]);
    expect(await ask(path, `Authorization: Bearer ${AGENT_KEY}`)).toBe(200);
  });

  it('signs its own tokens', async () => {
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

describe('the impostor', () => {
  const mine = { agentKey: AGENT_KEY };
  const refused = (reply: Reply) => expect(reply.body).toMatchObject({ status: 404, code: 'not_found' });

  it('speaks in another agent’s run', async () => {
    const theirs = await RunHolder.take(gateway, id, '', OTHER_AGENT_KEY);
    const stranger = new RunHolder(gateway, theirs.took, AGENT_KEY);
    refused(await stranger.call('world.in_run', { id, card: 'c' }));
    refused(await stranger.call('world.charge', { id, card: 'c' }));
    refused(await stranger.checkpoint({ mine: true }));
    for (const verb of ['heartbeat', 'finish'] as const) refused(await stranger.postAction(verb));
    refused(await stranger.read());
    refused(await stranger.history());
    expect(await upstream.requests()).toEqual([]);
    expect((await theirs.read()).body).toMatchObject({ epoch: 1, checkpoint: null });
    expect((await theirs.call('world.charge', { id, card: 'c' })).status).toBe(200);
  });

  it('takes a step in another agent’s saga, commits it, rolls it back', async () => {
    const theirs = await TestSaga.open(gateway, {}, OTHER_AGENT_KEY);
    refused(await charge({ ...mine, headers: { 'oncegate-saga': theirs.id } }));
    for (const [verb, body] of [
      ['commit', {}],
      ['rollback', { reason: 'mine' }],
      ['savepoints', { name: 'x' }],
    ] as const)
      refused(await gateway.post(`/v1/sagas/${theirs.id}/${verb}`, body, AGENT_KEY));
    refused(await gateway.get(`/v1/sagas/${theirs.id}`));
    expect(await theirs.read()).toMatchObject({ state: 'open', steps: [] });
    expect(await upstream.requests()).toEqual([]);
  });

  it('asks for another agent’s call, under its key or its txn', async () => {
    const theirs = await charge({ agentKey: OTHER_AGENT_KEY, key: 'shared' });
    refused(await gateway.get(`/v1/calls/${theirs.body.txn}`));
    refused(await gateway.post(`/v1/calls/${theirs.body.txn}/cancel`, {}, AGENT_KEY));
    const own = await charge({ ...mine, key: 'shared' });
    expect(own.body).toMatchObject({ replayed: false, state: 'succeeded' });
    expect(own.body.txn).not.toBe(theirs.body.txn);
    expect(await upstream.requests(id)).toHaveLength(2);
  });

  it('plays the operator', async () => {
    for (const path of ['locks', 'calls', 'agents', 'policies', 'approvals'])
      expect((await gateway.get(`/admin/${path}`)).body.code, path).toBe('forbidden');
    expect((await gateway.post('/admin/freeze', { reason: 'x' }, AGENT_KEY)).status).toBe(403);
    expect((await charge()).status).toBe(200);
  });
});
