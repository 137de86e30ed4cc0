import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startUpstream, type Upstream } from '../faults/upstream.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { type Gateway, makeGateway } from '../support/gateway.ts';
import { TestSaga } from './saga.ts';
import { sagaPolicies } from './saga-policies.ts';

let upstream: Upstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await freshDatabase();
  gateway = await makeGateway({ policies: sagaPolicies(upstream.url), databaseUrl: database.url });
  await gateway.start();
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

const effects = async (id: string) => (await upstream.effects(id)).map((effect) => effect.route);

describe('a rollback', () => {
  it('undoes every step, the last one first', async () => {
    const saga = await TestSaga.open(gateway, { name: 'three charges' });
    for (const id of ['a1', 'a2', 'a3']) expect((await saga.step('world.charge', { id })).status).toBe(200);
    const answer = await saga.rollback();
    expect(answer.status).toBe(202);
    expect(answer.body.state).toBe('rolled_back');
    expect(answer.body.steps.map((step: { undo: { state: string } }) => step.undo.state)).toEqual([
      'done',
      'done',
      'done',
    ]);
    const undone = (await upstream.effects()).filter((effect) => effect.route === 'POST /keyed/refund');
    expect(undone.map((effect) => effect.id)).toEqual(['a3', 'a2', 'a1']);
  });

  it('puts back what was there before', async () => {
    await gateway.call('world.write', { id: 'file', text: 'old' });
    const saga = await TestSaga.open(gateway);
    await saga.step('world.write', { id: 'file', text: 'new' });
    expect((await gateway.call('world.look', { id: 'file' })).body.result.object).toEqual({ text: 'new' });
    expect((await saga.rollback()).body.state).toBe('rolled_back');
    expect((await gateway.call('world.look', { id: 'file' })).body.result.object).toEqual({ text: 'old' });
  });

  it('never says rolled_back over an irreversible step', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.step('world.charge', { id: 'irr-1' });
    const mail = await saga.step('world.mail', { id: 'irr-2' });
    const { body } = await saga.rollback();
    expect(body.state).toBe('parked');
    expect(body.reason).toContain(mail.body.txn);
    expect(await effects('irr-1')).toEqual(['POST /keyed/charge']);
    const resumed = await saga.admin('resume', { reason: 'the mail is explained', waive: [mail.body.txn] }, '?wait=10');
    expect(resumed.body.state).toBe('parked');
    expect(await effects('irr-1')).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    expect((await saga.admin('close', { reason: 'seen to' })).body.state).toBe('closed');
  });
});
