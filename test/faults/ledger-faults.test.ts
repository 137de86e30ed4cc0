import { describe, expect, it } from 'vitest';
import { useLinkedGateway } from './use-linked-gateway.ts';

const { upstream, database, link, gateway } = useLinkedGateway();

/** Matches a Bind message, which names its prepared statement. The first use of a statement also carries Parse. */
const matchesStatement = (statement: string) => (chunk: Buffer) => chunk.includes(`\0${statement}\0`);

const KINDS = ['keyed', 'put', 'probed', 'none'] as const;

async function callAndCountEffects(tool: string, id: string) {
  const answer = await gateway.call(tool, { id }, { key: id });
  return { answer, effects: (await upstream.effects(id)).length };
}

describe('a claim of a held call', () => {
  it('sends nothing if its commit was persisted but the gateway got no confirmation and answered 503', async () => {
    const id = 't1-kept-delayed';
    let claimConnection: number | undefined;
    // Other connections commit at the same time, so only the connection of the claim is cut.
    const isCommitOfClaim = (chunk: Buffer, _total: number, connection: number) => {
      if (matchesStatement('request-approval')(chunk)) claimConnection ??= connection;
      return claimConnection === connection && chunk.includes('commit\0');
    };
    const cut = link.cutAfterClientBytes(isCommitOfClaim, { forward: true });
    const first = await gateway.call('world.delayed', { id }, { key: id });
    expect(await cut).toBe(true);
    expect(first.status).toBe(503);
    const readOpenCalls = () => database.query('select txn from open_calls where txn = $1', [first.body.txn]);
    await expect.poll(readOpenCalls, { timeout: 10_000 }).toEqual([]);
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe.each(KINDS)('a failed ledger write of world.%s', (kind) => {
  const tool = `world.${kind}`;

  it('sends nothing and frees the key if the claim was not persisted', async () => {
    const id = `t1-lost-${kind}`;
    const cut = link.cutAfterClientBytes(matchesStatement('write-claims'), { forward: false });
    const first = await gateway.call(tool, { id }, { key: id });
    expect(await cut).toBe(true);
    expect(first.status).toBe(503);
    expect(first.body.code).toBe('unavailable');
    expect(await upstream.requests(id)).toEqual([]);
    await expect
      .poll(() => callAndCountEffects(tool, id).then(({ answer }) => answer.status), { timeout: 10_000 })
      .toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('sends nothing and releases the claim if the claim was persisted without confirmation', async () => {
    const id = `t1-kept-${kind}`;
    const cut = link.cutAfterClientBytes(matchesStatement('write-claims'), { forward: true });
    const first = await gateway.call(tool, { id }, { key: id });
    expect(await cut).toBe(true);
    expect(first.status).toBe(503);
    expect(await upstream.requests(id)).toEqual([]);
    await expect
      .poll(() => callAndCountEffects(tool, id).then(({ answer }) => answer.status), { timeout: 10_000 })
      .toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it.each([
    ['was not persisted', false],
    ['was persisted without confirmation', true],
  ] as const)(
    'tells the caller to retry, and the retry gets the one result, if the settlement %s',
    async (name, forward) => {
      const id = `t2-${name.replaceAll(' ', '-')}-${kind}`;
      const cut = link.cutAfterClientBytes(matchesStatement('write-settlements'), { forward });
      const first = await gateway.call(tool, { id }, { key: id });
      expect(await cut).toBe(true);
      expect([200, 504]).toContain(first.status);
      if (first.status === 504) expect(first.body).toMatchObject({ code: 'in_doubt', retry: 'same_key' });
      const again = await gateway.call(tool, { id }, { key: id });
      expect(again.status).toBe(200);
      expect(await upstream.effects(id)).toHaveLength(1);
      expect((await upstream.requests(id)).filter((request) => request.method !== 'GET')).toHaveLength(1);
    },
  );
});

describe('a gateway whose PostgreSQL does not answer', () => {
  it('reports no success that is not recorded, even if the upstream answered', async () => {
    const id = 'unrecorded';
    await upstream.plan({ match: { id }, do: [{ event: 'arrived' }, { wait: 'go' }] });
    const pending = gateway.call('world.none', { id }, { key: id });
    await upstream.awaitEvent('arrived');
    link.stall();
    // A repeat must not answer that nothing was sent either.
    const repeated = await gateway.call('world.none', { id }, { key: id });
    expect(repeated.body).toMatchObject({ status: 504, code: 'in_doubt', retry: 'same_key' });
    await upstream.release('go');
    const answer = await pending;
    expect(answer.status).toBe(504);
    expect(answer.body).toMatchObject({ code: 'in_doubt', state: 'sending', retry: 'same_key' });
    link.cut();
    await link.pass();
    await gateway.waitUntilReady();
    expect((await gateway.call('world.none', { id }, { key: id })).status).toBe(200);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('answers 503, sends nothing, and recovers by itself', async () => {
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
        .poll(() => callAndCountEffects('world.keyed', id).then(({ answer }) => answer.status), { timeout: 15_000 })
        .toBe(200);
    }
    const effects = await upstream.effects();
    expect(effects.filter((effect) => effect.id?.startsWith('stall-'))).toHaveLength(100);
  });

  it('answers 503 to reads and refusals too, and stays alive', async () => {
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
