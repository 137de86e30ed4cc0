import { describe, expect, it } from 'vitest';
import { useLinkedGateway } from './use-linked-gateway.ts';

const { upstream, database, link, gateway } = useLinkedGateway();

/** Statements go over the wire as Bind messages that name their prepared statement; its first use carries Parse too. */
const names = (statement: string) => (chunk: Buffer) => chunk.includes(`\0${statement}\0`);

const KINDS = ['keyed', 'put', 'probed', 'none'] as const;

async function settled(tool: string, id: string) {
  const answer = await gateway.call(tool, { id }, { key: id });
  return { answer, effects: (await upstream.effects(id)).length };
}

describe('a claim that is to be held', () => {
  it('and whose commit is unknown, but persisted, never leaves by itself: the caller was told that nothing was sent', async () => {
    const id = 't1-kept-delayed';
    let asked: number | undefined;
    // Others commit at the same time: only the connection that asked is cut.
    const commits = (chunk: Buffer, _total: number, connection: number) => {
      if (names('request-approval')(chunk)) asked ??= connection;
      return asked === connection && chunk.includes('commit\0');
    };
    const cut = link.cutAfterClientBytes(commits, { forward: true });
    const first = await gateway.call('world.delayed', { id }, { key: id });
    expect(await cut).toBe(true);
    expect(first.status).toBe(503);
    const open = () => database.query('select txn from open_calls where txn = $1', [first.body.txn]);
    await expect.poll(open, { timeout: 10_000 }).toEqual([]);
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe.each(KINDS)('a ledger write that fails, world.%s', (kind) => {
  const tool = `world.${kind}`;

  it('T1, and not persisted: nothing is sent, and the key is free', async () => {
    const id = `t1-lost-${kind}`;
    const cut = link.cutAfterClientBytes(names('claim'), { forward: false });
    const first = await gateway.call(tool, { id }, { key: id });
    expect(await cut).toBe(true);
    expect(first.status).toBe(503);
    expect(first.body.code).toBe('unavailable');
    expect(await upstream.requests(id)).toEqual([]);
    await expect.poll(() => settled(tool, id).then(({ answer }) => answer.status), { timeout: 10_000 }).toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('T1, but persisted: nothing is sent, the claim is found and unbound', async () => {
    const id = `t1-kept-${kind}`;
    const cut = link.cutAfterClientBytes(names('claim'), { forward: true });
    const first = await gateway.call(tool, { id }, { key: id });
    expect(await cut).toBe(true);
    expect(first.status).toBe(503);
    expect(await upstream.requests(id)).toEqual([]);
    await expect.poll(() => settled(tool, id).then(({ answer }) => answer.status), { timeout: 10_000 }).toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it.each([
    ['and not persisted', false],
    ['but persisted', true],
  ] as const)('T2, %s: the caller is told to ask again, and gets the one answer', async (name, forward) => {
    const id = `t2-${name.replaceAll(' ', '-')}-${kind}`;
    const cut = link.cutAfterClientBytes(names('advance'), { forward });
    const first = await gateway.call(tool, { id }, { key: id });
    expect(await cut).toBe(true);
    expect([200, 504]).toContain(first.status);
    if (first.status === 504) expect(first.body).toMatchObject({ code: 'in_doubt', retry: 'same_key' });
    const again = await gateway.call(tool, { id }, { key: id });
    expect(again.status).toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
    expect((await upstream.requests(id)).filter((request) => request.method !== 'GET')).toHaveLength(1);
  });
});

describe('PostgreSQL that does not answer', () => {
  it('after the tool did: nobody is told of a success that is not recorded', async () => {
    const id = 'unrecorded';
    await upstream.plan({ match: { id }, do: [{ event: 'arrived' }, { wait: 'go' }] });
    const asked = gateway.call('world.none', { id }, { key: id });
    await upstream.awaitEvent('arrived');
    link.stall();
    // Who asks for it once more is not told that nothing was sent either.
    const repeated = await gateway.call('world.none', { id }, { key: id });
    expect(repeated.body).toMatchObject({ status: 504, code: 'in_doubt', retry: 'same_key' });
    await upstream.release('go');
    const answer = await asked;
    expect(answer.status).toBe(504);
    expect(answer.body).toMatchObject({ code: 'in_doubt', state: 'sending', retry: 'same_key' });
    link.cut();
    await link.pass();
    await gateway.waitUntilReady();
    expect((await gateway.call('world.none', { id }, { key: id })).status).toBe(200);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('is said, nothing is sent, and it heals by itself', async () => {
    link.stall();
    const answers = await Promise.all(
      Array.from({ length: 100 }, (_, i) => gateway.call('world.keyed', { id: `stall-${i}` }, { key: `stall-${i}` })),
    );
    expect(answers.map((answer) => answer.status)).toEqual(answers.map(() => 503));
    expect((await gateway.get('/readyz')).status).toBe(503);
    link.cut();
    await link.pass();
    await gateway.waitUntilReady();
    for (let i = 0; i < 100; i += 1) {
      const id = `stall-${i}`;
      await expect
        .poll(() => settled('world.keyed', id).then(({ answer }) => answer.status), { timeout: 15_000 })
        .toBe(200);
    }
    const effects = await upstream.effects();
    expect(effects.filter((effect) => effect.id?.startsWith('stall-'))).toHaveLength(100);
  });

  it('leaves reads and refusals unanswered too, with 503, and keeps the process alive', async () => {
    await link.refuse();
    expect((await gateway.call('world.read', { id: 'r' })).status).toBe(503);
    expect((await gateway.call('nothing.like_it', { id: 'r' })).status).toBe(503);
    expect((await gateway.get('/v1/calls')).status).toBe(503);
    expect((await gateway.get('/healthz')).status).toBe(200);
    await link.pass();
    await gateway.waitUntilReady();
    expect((await gateway.call('world.read', { id: 'r' })).status).toBe(200);
  });
});
