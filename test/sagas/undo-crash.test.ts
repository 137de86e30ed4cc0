import { afterAll, beforeAll, expect, it } from 'vitest';
import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { type Gateway, makeGateway } from '../support/gateway.ts';
import { buildSagaPolicies } from './saga-policies.ts';

let upstream: TestUpstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await createTestDatabase();
  gateway = await makeGateway({ policies: buildSagaPolicies(upstream.url), databaseUrl: database.url });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

it.each(['undoing', 'claimed:2', 'sending:2', 'answered:2', 'settled:2', 'marked'])(
  'a call that a person undoes is undone once although the gateway dies at %s',
  async (point) => {
    const id = `undo-${point}`;
    await gateway.start({ ONCEGATE_DIE_AT: point });
    const { txn } = (await gateway.call('world.charge', { id }, { key: id })).body;
    const asked = gateway.admin('POST', `/admin/calls/${txn}/undo`, { reason: 'a mistake' }).catch(() => undefined);
    expect(await gateway.waitForExit()).toMatchObject({ signal: 'SIGKILL' });
    await asked;
    await gateway.start();
    await gateway.waitForCall(txn, (call) => call.undo.state === 'done');
    const routes = (await upstream.effects(id)).map((effect) => effect.route);
    expect(routes).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    await gateway.kill();
  },
);
