import { describe, expect, it } from 'vitest';
import { OTHER_AGENT_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { TestSaga } from './saga.ts';
import { buildSagaPolicies } from './saga-policies.ts';

const { upstream, database, gateway } = useGateway({ policies: buildSagaPolicies });

const readEffectRoutes = async (id: string) => (await upstream.effects(id)).map((effect) => effect.route);

describe('a rollback', () => {
  it('undoes every step, the last one first', async () => {
    const saga = await TestSaga.open(gateway, { name: 'three charges' });
    for (const id of ['a1', 'a2', 'a3']) expect((await saga.callStep('world.charge', { id })).status).toBe(200);
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

  it('restores the earlier state', async () => {
    await gateway.call('world.write', { id: 'file', text: 'old' });
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.write', { id: 'file', text: 'new' });
    expect((await gateway.call('world.look', { id: 'file' })).body.result.object).toEqual({ text: 'new' });
    expect((await saga.rollback()).body.state).toBe('rolled_back');
    expect((await gateway.call('world.look', { id: 'file' })).body.result.object).toEqual({ text: 'old' });
    // People see the observed state; the agent does not.
    const [step] = (await saga.read()).steps;
    expect((await gateway.get(`/v1/calls/${step.undo.txn}`)).body).toMatchObject({ args: null, result: null });
    expect((await gateway.admin('GET', `/admin/calls/${step.undo.txn}`)).body.args).toEqual({
      id: 'file',
      text: 'old',
    });
  });

  it('never ends as rolled_back if a step is irreversible', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'irr-1' });
    const mail = await saga.callStep('world.mail', { id: 'irr-2' });
    const { body } = await saga.rollback();
    expect(body.state).toBe('parked');
    expect(body.reason).toContain(mail.body.txn);
    expect(await readEffectRoutes('irr-1')).toEqual(['POST /keyed/charge']);
    const resumed = await saga.admin('resume', { reason: 'the mail is explained', waive: [mail.body.txn] }, '?wait=10');
    expect(resumed.body.state).toBe('parked');
    expect(await readEffectRoutes('irr-1')).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    expect((await saga.admin('close', { reason: 'seen to' })).body.state).toBe('closed');
  });

  it('parks if PostgreSQL cannot store the arguments of an undo', async () => {
    await upstream.plan({ match: { id: 'odd' }, do: ['apply', { reply: 200, body: { id: '\uD800' } }] });
    const saga = await TestSaga.open(gateway);
    const step = await saga.callStep('world.charge', { id: 'odd' });
    expect([step.status, step.body.state]).toEqual([200, 'succeeded']);
    const { body } = await saga.rollback();
    expect(body).toMatchObject({ state: 'parked', reason: expect.stringContaining('is not undone') });
  });
});

describe('opening a saga', () => {
  it('with a key creates one saga, however often it is repeated', async () => {
    const key = { 'idempotency-key': 'open-1' };
    const first = await gateway.post('/v1/sagas', { name: 'x' }, undefined, key);
    const again = await gateway.post('/v1/sagas', { name: 'x' }, undefined, key);
    expect([first.status, again.status]).toEqual([201, 201]);
    expect(again.body).toEqual(first.body);
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    const other = await gateway.post('/v1/sagas', { name: 'y' }, undefined, key);
    expect([other.status, other.body.code]).toEqual([422, 'key_reused']);
    const stranger = await gateway.post('/v1/sagas', { name: 'x' }, OTHER_AGENT_KEY, key);
    expect(stranger.body.saga).not.toBe(first.body.saga);
  });

  it('with a key creates one saga even if 20 requests arrive at once', async () => {
    const replies = await Promise.all(
      Array.from({ length: 20 }, () => gateway.post('/v1/sagas', {}, undefined, { 'idempotency-key': 'open-many' })),
    );
    expect(new Set(replies.map((reply) => reply.body.saga)).size).toBe(1);
    expect(replies.filter((reply) => reply.headers.get('idempotent-replayed') === null)).toHaveLength(1);
  });

  it.each([
    [{ ttl: 'soon' }, /^ttl must be a duration such as 500ms, 10s, 5m, 24h or 30d \(got soon\)\.$/],
    [{ ttl: true }, /^ttl must be a duration such as .* or whole seconds \(got true\)\.$/],
    [{ ttl: 0 }, /^ttl must be at least 1 \(got 0\)\.$/],
    [{ ttl: '400d' }, /^ttl must be at most 366 days\.$/],
    [{ onExpire: 'explode' }, /^onExpire must be one of rollback, park \(got explode\)\.$/],
    [{ nam: 'x' }, /^Unknown key "nam"\. Did you mean "name"\? Known keys: name, ttl and onExpire\.$/],
    [
      { tll: '5m', onExpire: 1 },
      /^onExpire must be one of rollback, park \(got 1\)\. Unknown key "tll"\. Did you mean "ttl"\?/,
    ],
    [{ name: '' }, /^name must have at least 1 character \(got 0\)\.$/],
    [[], /^The body must be a JSON object\.$/],
  ])('refuses %j', async (body, detail) => {
    const reply = await gateway.post('/v1/sagas', body);
    expect([reply.status, reply.body.code]).toEqual([400, 'malformed']);
    expect(reply.body.detail).toMatch(detail);
  });

  it('gives other agents no access to the saga', async () => {
    const saga = await TestSaga.open(gateway);
    const path = `/v1/sagas/${saga.id}`;
    expect((await gateway.get(path, OTHER_AGENT_KEY)).status).toBe(404);
    for (const verb of ['commit', 'rollback', 'savepoints']) {
      const body = verb === 'commit' ? {} : verb === 'rollback' ? { reason: 'mine' } : { name: 's' };
      expect((await gateway.post(`${path}/${verb}`, body, OTHER_AGENT_KEY)).status, verb).toBe(404);
    }
    const step = await gateway.call(
      'world.charge',
      { id: 'strange' },
      { agentKey: OTHER_AGENT_KEY, headers: { 'oncegate-saga': saga.id } },
    );
    expect(step.status).toBe(404);
    expect(await readEffectRoutes('strange')).toEqual([]);
    expect((await gateway.get('/v1/sagas/nonsense')).status).toBe(404);
  });
});

describe('a step', () => {
  it('names its saga, is listed in it, and depends on the steps that it names', async () => {
    const saga = await TestSaga.open(gateway);
    const a = await saga.callStep('world.charge', { id: 's-a' });
    const b = await saga.callStep('world.charge', { id: 's-b' }, { on: [] });
    const c = await saga.callStep('world.charge', { id: 's-c' }, { on: [a.body.txn] });
    const d = await saga.callStep('world.charge', { id: 's-d' });
    expect(a.body.saga).toBe(saga.id);
    const { steps } = await saga.read();
    expect(steps.map((step: { dependsOn: string[] }) => step.dependsOn)).toEqual([
      [],
      [],
      [a.body.txn],
      [a.body.txn, b.body.txn, c.body.txn],
    ]);
    expect(steps[0].undo).toEqual({
      state: 'none',
      kind: 'compensable',
      tool: 'world.refund',
      txn: null,
      reason: null,
    });
    const listed = await gateway.get(`/v1/calls?saga=${saga.id}`);
    expect(listed.body.items.map((call: { txn: string }) => call.txn)).toEqual(
      [d, c, b, a].map((reply) => reply.body.txn),
    );
  });

  it.each([
    ['oncegate-saga', 'nonsense', /id of a saga/],
    ['oncegate-depends-on', 'none', /needs Oncegate-Saga/],
    ['oncegate-undo', '{"tool":', /Oncegate-Undo/],
    ['oncegate-undo', '{"tool":"world.refund","tool":"x"}', /twice|duplicate|Oncegate-Undo/],
    ['oncegate-undo', '{"args":{}}', /: tool is required\.$/],
    ['oncegate-undo', '[]', /Oncegate-Undo/],
  ])('is refused with the header %s: %s', async (name, value, detail) => {
    const reply = await gateway.call('world.charge', { id: 'bad-header' }, { headers: { [name]: value } });
    expect([reply.status, reply.body.code]).toEqual([400, 'malformed']);
    expect(reply.body.detail).toMatch(detail);
    expect(await readEffectRoutes('bad-header')).toEqual([]);
  });

  it('can depend only on steps of its own saga', async () => {
    const [one, two] = [await TestSaga.open(gateway), await TestSaga.open(gateway)];
    const a = await one.callStep('world.charge', { id: 'dep-a' });
    const reply = await two.callStep('world.charge', { id: 'dep-b' }, { on: [a.body.txn] });
    expect([reply.status, reply.body.code]).toEqual([400, 'malformed']);
    expect(reply.body.detail).toContain(a.body.txn);
    const bad = await two.callStep('world.charge', { id: 'dep-b' }, { headers: { 'oncegate-depends-on': 'a, b' } });
    expect(bad.status).toBe(400);
    expect(await readEffectRoutes('dep-b')).toEqual([]);
  });

  it('is refused if another saga or a call without a saga used its key, and replayed in the same saga', async () => {
    const [one, two] = [await TestSaga.open(gateway), await TestSaga.open(gateway)];
    const first = await one.callStep('world.charge', { id: 'key-a' }, { key: 'saga-key-1' });
    const again = await one.callStep('world.charge', { id: 'key-a' }, { key: 'saga-key-1' });
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect(again.body.txn).toBe(first.body.txn);
    const other = await two.callStep('world.charge', { id: 'key-a' }, { key: 'saga-key-1' });
    expect([other.status, other.body.code]).toEqual([422, 'key_reused']);
    await gateway.call('world.charge', { id: 'key-b' }, { key: 'saga-key-2' });
    expect((await two.callStep('world.charge', { id: 'key-b' }, { key: 'saga-key-2' })).status).toBe(422);
    expect((await one.read()).steps).toHaveLength(1);
    expect((await two.read()).steps).toHaveLength(0);
  });

  it('without a key is a repeat only within its saga', async () => {
    const [one, two] = [await TestSaga.open(gateway), await TestSaga.open(gateway)];
    const a = await one.callStep('world.charge', { id: 'unkeyed' });
    const b = await two.callStep('world.charge', { id: 'unkeyed' });
    expect(b.body.txn).not.toBe(a.body.txn);
    const c = await two.callStep('world.charge', { id: 'unkeyed' });
    expect(c.body.txn).toBe(b.body.txn);
    expect(c.body.replayed).toBe(true);
  });

  it('of a closed saga is refused if it is new and replayed if it is not', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'closed-a' }, { key: 'closed-a' });
    await saga.postAction('commit');
    const late = await saga.callStep('world.charge', { id: 'closed-b' });
    expect([late.status, late.body.code, late.body.retry]).toEqual([409, 'saga_closed', 'never']);
    expect(await readEffectRoutes('closed-b')).toEqual([]);
    const replay = await saga.callStep('world.charge', { id: 'closed-a' }, { key: 'closed-a' });
    expect([replay.status, replay.body.replayed]).toEqual([200, true]);
  });
});

describe('a commit', () => {
  it('ends the saga: it can be repeated, a rollback is refused, and single calls can be undone', async () => {
    const saga = await TestSaga.open(gateway);
    const a = await saga.callStep('world.charge', { id: 'c-a' });
    expect((await saga.postAction('commit')).body.state).toBe('committed');
    expect((await saga.postAction('commit')).status).toBe(200);
    const rollback = await saga.rollback();
    expect([rollback.status, rollback.body.code]).toEqual([409, 'saga_closed']);
    expect((await saga.admin('rollback', { reason: 'r' })).status).toBe(409);
    const undone = await gateway.admin('POST', `/admin/calls/${a.body.txn}/undo?wait=10`, { reason: 'a mistake' });
    expect(undone.status).toBe(202);
    expect(undone.body.undo).toMatchObject({ state: 'done', tool: 'world.refund' });
    const again = await gateway.admin('POST', `/admin/calls/${a.body.txn}/undo?wait=10`, { reason: 'a mistake' });
    expect(again.body.undo.txn).toBe(undone.body.undo.txn);
    expect(await readEffectRoutes('c-a')).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
  });

  it('is refused while a step has not settled', async () => {
    const saga = await TestSaga.open(gateway);
    const held = await saga.callStep('world.approved', { id: 'c-held' }, { headers: { prefer: 'wait=0' } });
    expect(held.status).toBe(202);
    const reply = await saga.postAction('commit');
    expect([reply.status, reply.body.retry]).toEqual([409, 'after_delay']);
    expect(reply.body.detail).toContain(held.body.txn);
    expect((await saga.rollback()).body.state).toBe('rolled_back');
    expect((await gateway.get(`/v1/calls/${held.body.txn}`)).body.state).toBe('cancelled');
  });
});

describe('a savepoint', () => {
  it('is the target of a rollback after which the saga continues', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'sp-1' });
    expect((await saga.postAction('savepoints', { name: 'good' })).status).toBe(201);
    await saga.callStep('world.charge', { id: 'sp-2' });
    expect((await saga.postAction('savepoints', { name: 'good' })).body).toMatchObject({ name: 'good', after: 1 });
    await saga.postAction('savepoints', { name: 'later' });
    const rollback = await saga.rollback({ to: 'good' });
    expect(rollback.body.state).toBe('open');
    expect(rollback.body.savepoints).toEqual([{ name: 'good', after: 1 }]);
    expect(await readEffectRoutes('sp-1')).toEqual(['POST /keyed/charge']);
    expect(await readEffectRoutes('sp-2')).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    expect((await saga.callStep('world.charge', { id: 'sp-3' })).status).toBe(200);
    const all = await saga.rollback();
    expect(all.body.state).toBe('rolled_back');
    for (const id of ['sp-1', 'sp-2', 'sp-3']) expect(await readEffectRoutes(id), id).toHaveLength(2);
  });

  it('before the first step lets the saga continue too', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.postAction('savepoints', { name: 'start' });
    await saga.callStep('world.charge', { id: 'sp-0' });
    expect((await saga.rollback({ to: 'start' })).body.state).toBe('open');
    expect(await readEffectRoutes('sp-0')).toHaveLength(2);
    expect((await saga.postAction('commit')).status).toBe(200);
  });

  it('that does not exist gives 404 with the names of those that do', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.postAction('savepoints', { name: 'one' });
    const reply = await saga.rollback({ to: 'two' });
    expect([reply.status, reply.body.code]).toEqual([404, 'not_found']);
    expect(reply.body.detail).toContain('"one"');
    expect((await saga.read()).state).toBe('open');
  });
});

describe('a saga whose ttl ends', () => {
  it('rolls back by itself', async () => {
    const saga = await TestSaga.open(gateway, { ttl: '400ms' });
    await saga.callStep('world.charge', { id: 'ttl-1' });
    const settled = await saga.waitUntilSettled();
    expect([settled.state, settled.reason]).toEqual(['rolled_back', 'the ttl of the saga ran out']);
    expect(await readEffectRoutes('ttl-1')).toHaveLength(2);
    expect((await saga.callStep('world.charge', { id: 'ttl-2' })).body.code).toBe('saga_closed');
  });

  it('parks if it says so, and a person decides', async () => {
    const saga = await TestSaga.open(gateway, { ttl: '300ms', onExpire: 'park' });
    await saga.callStep('world.charge', { id: 'ttl-p' });
    expect((await saga.waitUntilSettled()).state).toBe('parked');
    expect((await saga.callStep('world.charge', { id: 'ttl-q' })).body.code).toBe('saga_closed');
    expect((await saga.admin('resume', { reason: 'again' })).status).toBe(409);
    expect((await saga.admin('rollback', { reason: 'enough' }, '?wait=10')).body.state).toBe('rolled_back');
  });
});

describe('an undo in the Oncegate-Undo header', () => {
  const undo = (tool: string, args: object) => ({ 'oncegate-undo': JSON.stringify({ tool, args }) });

  it('replaces the undo of the contract', async () => {
    const saga = await TestSaga.open(gateway);
    const reply = await saga.callStep(
      'world.plain',
      { id: 'own-1' },
      { headers: undo('world.refund', { id: 'own-1', effect: 'mine' }) },
    );
    expect(reply.status).toBe(200);
    expect((await saga.rollback()).body.state).toBe('rolled_back');
    const refunds = (await upstream.effects('own-1')).filter((effect) => effect.route === 'POST /keyed/refund');
    expect(refunds.map((effect) => effect.body)).toEqual([{ id: 'own-1', effect: 'mine' }]);
  });

  it.each([
    ['world.refund', { id: 'own-x', effect: 'forbidden' }, 403, 'denied'],
    ['world.refund', { id: 'own-x' }, 400, 'invalid_arguments'],
    ['world.look', { id: 'own-x' }, 400, 'invalid_arguments'],
    ['world.approved', { id: 'own-x' }, 403, 'denied'],
    ['other.tool', {}, 403, 'denied'],
  ])('is checked before the call is sent: %s %j gives %i %s', async (tool, args, status, code) => {
    const reply = await gateway.call('world.plain', { id: 'own-x' }, { headers: undo(tool, args) });
    expect([reply.status, reply.body.code]).toEqual([status, code]);
    expect(reply.body.detail).toContain('Oncegate-Undo');
    expect(await readEffectRoutes('own-x')).toEqual([]);
  });
});

describe('an observation', () => {
  it('prevents the send if the requested state already exists', async () => {
    await gateway.call('world.write', { id: 'obs', text: 'same' });
    const again = await gateway.call('world.write', { id: 'obs', text: 'same' }, { key: 'obs-2' });
    expect(again.body).toMatchObject({ state: 'succeeded', outcome: 'already_satisfied', attempts: 0 });
    expect(await readEffectRoutes('obs')).toEqual(['PUT /idempotent/objects']);
  });

  it('of the requested state leaves nothing to undo', async () => {
    await gateway.call('world.write', { id: 'obs-s', text: 'kept' });
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.write', { id: 'obs-s', text: 'kept' });
    const { body } = await saga.rollback();
    expect(body).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'skipped' } }] });
    expect(await readEffectRoutes('obs-s')).toEqual(['PUT /idempotent/objects']);
  });

  it('that fails prevents the send and leaves the key free', async () => {
    await upstream.plan({ match: { id: 'obs-b', method: 'GET' }, do: [{ reply: 500 }], times: 'always' });
    const reply = await gateway.call('world.write', { id: 'obs-b', text: 'x' }, { key: 'obs-b' });
    expect([reply.status, reply.body.code]).toEqual([503, 'unavailable']);
    expect(await readEffectRoutes('obs-b')).toEqual([]);
    expect((await gateway.get(`/v1/calls/${reply.headers.get('oncegate-txn')}`)).status).toBe(404);
  });
});

describe('a dry run', () => {
  it('of a step answers as the step would be answered', async () => {
    const saga = await TestSaga.open(gateway);
    const dryRun = (headers: object) =>
      saga.callStep('world.charge', { id: 'dry' }, { headers: { 'oncegate-dry-run': '?1', ...headers } });
    expect((await dryRun({})).body.wouldAnswer).toMatchObject({ status: 200, sends: true });
    const undo = JSON.stringify({ tool: 'world.refund', args: { id: 'dry', effect: 'forbidden' } });
    expect((await dryRun({ 'oncegate-undo': undo })).body.wouldAnswer).toMatchObject({ status: 403, sends: false });
    await saga.postAction('commit');
    expect((await dryRun({})).body.wouldAnswer).toMatchObject({ status: 409, code: 'saga_closed' });
  });
});

describe('people', () => {
  it('see the plan before anything is undone', async () => {
    const saga = await TestSaga.open(gateway);
    const a = await saga.callStep('world.charge', { id: 'plan-a' }, { on: [] });
    const b = await saga.callStep('world.charge', { id: 'plan-b' }, { on: [] });
    const c = await saga.callStep('world.charge', { id: 'plan-c' }, { on: [a.body.txn] });
    const d = await saga.callStep('world.mail', { id: 'plan-d' }, { on: [b.body.txn] });
    const { status, body } = await saga.admin('rollback', { dryRun: true });
    expect(status).toBe(200);
    expect(body.wouldEnd).toBe('parked');
    const lines = body.plan.map((line: { txn: string; does: string; wave: number; blockedBy: string | null }) => [
      line.txn,
      line.does,
      line.wave,
      line.blockedBy,
    ]);
    expect(lines).toEqual([
      [d.body.txn, 'cannot', null, null],
      [c.body.txn, 'undo', 1, null],
      [b.body.txn, 'undo', null, d.body.txn],
      [a.body.txn, 'undo', 2, null],
    ]);
    expect((await saga.read()).state).toBe('open');
    expect(await readEffectRoutes('plan-a')).toHaveLength(1);
  });

  it('confirm a plan by its digest, and a changed plan is refused', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'shown-a' });
    const readPlan = async () => (await saga.admin('rollback', { dryRun: true })).body;
    const { digest } = await readPlan();
    expect((await readPlan()).digest).toBe(digest);
    await saga.callStep('world.charge', { id: 'shown-b' });

    const other = await saga.admin('rollback', { reason: 'as shown', digest });
    expect([other.status, other.body.code]).toEqual([409, 'conflict']);
    expect((await saga.read()).state).toBe('open');
    expect(await readEffectRoutes('shown-a')).toHaveLength(1);

    const newDigest = (await readPlan()).digest;
    expect(newDigest).not.toBe(digest);
    const done = await saga.admin('rollback', { reason: 'as shown', digest: newDigest }, '?wait=20');
    expect(done.body.state).toBe('rolled_back');
    // A repeat, for example after a lost answer, gets the same result.
    const again = await saga.admin('rollback', { reason: 'as shown', digest: newDigest }, '?wait=20');
    expect([again.status, again.body.state]).toEqual([202, 'rolled_back']);
    expect((await saga.admin('rollback', { reason: 'r', digest: 'x' })).status).toBe(400);
  });

  it('may repeat a rollback to a savepoint, which undoes nothing more', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.runStep('world.charge', { id: 'twice-a' });
    await saga.postAction('savepoints', { name: 'here' });
    await saga.runStep('world.charge', { id: 'twice-b' });
    const { digest } = (await saga.admin('rollback', { dryRun: true, to: 'here' })).body;
    const body = { reason: 'as shown', digest, to: 'here' };
    expect((await saga.admin('rollback', body, '?wait=20')).body.state).toBe('open');
    const later = await saga.runStep('world.charge', { id: 'twice-c' });
    const again = await saga.admin('rollback', body, '?wait=20');
    expect([again.status, again.body.state]).toEqual([202, 'open']);
    expect(again.body.steps.at(-1)).toMatchObject({ txn: later, state: 'succeeded', undo: { state: 'none' } });
    expect(await readEffectRoutes('twice-b')).toHaveLength(2);
    const leaves = `select 1 from audit_entries where entry like '%"saga":"${saga.id}"%"what":"saga_rolling_back"%'`;
    expect(await database.query(leaves)).toHaveLength(1);
    // After another rollback began, the older one can no longer be repeated.
    await saga.rollback({ to: 'here', reason: 'once more' });
    await saga.runStep('world.charge', { id: 'twice-d' });
    expect((await saga.admin('rollback', body)).status).toBe(409);
  });

  it('may repeat a rollback that was parked', async () => {
    const saga = await TestSaga.open(gateway);
    await saga.runStep('world.charge', { id: 'stuck-a' });
    await saga.runStep('world.mail', { id: 'stuck-b' });
    const { digest } = (await saga.admin('rollback', { dryRun: true })).body;
    const body = { reason: 'as shown', digest };
    expect((await saga.admin('rollback', body, '?wait=20')).body.state).toBe('parked');
    const again = await saga.admin('rollback', body, '?wait=20');
    expect([again.status, again.body.state]).toEqual([202, 'parked']);
  });

  it('never undo more than the plan they confirmed, even if the agent adds a step at the same time', async () => {
    const settlements = await Promise.all(
      Array.from({ length: 8 }, async (_, i) => {
        const saga = await TestSaga.open(gateway);
        await saga.callStep('world.charge', { id: `race-${i}-0` });
        const { digest } = (await saga.admin('rollback', { dryRun: true })).body;
        const [answer] = await Promise.all([
          saga.admin('rollback', { reason: 'as shown', digest }, '?wait=20'),
          saga.callStep('world.charge', { id: `race-${i}-1` }),
        ]);
        const { state, steps } = await saga.read();
        return [answer.status, state, steps.length].join(' ');
      }),
    );
    // If the rollback is first, the step is refused. If the step is first, the rollback is refused.
    for (const outcome of settlements) expect(['202 rolled_back 1', '409 open 2']).toContain(outcome);
  });

  it('need the right role and a reason', async () => {
    const saga = await TestSaga.open(gateway);
    const asViewer = (verb: string, body: object) => gateway.post(`/admin/sagas/${saga.id}/${verb}`, body, VIEWER_KEY);
    expect((await asViewer('rollback', { dryRun: true })).status).toBe(200);
    for (const verb of ['rollback', 'resume', 'close'])
      expect((await asViewer(verb, { reason: 'r' })).status, verb).toBe(403);
    for (const verb of ['rollback', 'resume', 'close']) expect((await saga.admin(verb, {})).status, verb).toBe(400);
    expect((await saga.admin('close', { reason: 'r' })).status).toBe(409);
    expect((await gateway.admin('GET', '/admin/sagas?state=wrong')).status).toBe(400);
    const listed = await gateway.admin('GET', '/admin/sagas?state=open&limit=2');
    expect(listed.body.items).toHaveLength(2);
    const next = await gateway.admin('GET', `/admin/sagas?state=open&limit=2&cursor=${listed.body.cursor}`);
    expect(next.body.items[0].saga).not.toBe(listed.body.items[0].saga);
    expect((await gateway.admin('GET', '/admin/sagas?cursor=x')).status).toBe(400);
  });

  it('can supply the arguments of an undo that the gateway could not build', async () => {
    await upstream.plan({ match: { id: 'noargs' }, do: ['apply', { reply: 200, body: { nothing: 'useful' } }] });
    const call = await gateway.call('world.charge', { id: 'noargs' });
    const shown = await gateway.admin('GET', `/admin/calls/${call.body.txn}`);
    expect(shown.body.undo).toMatchObject({ state: 'none', args: null });
    expect(shown.body.undo.reason).toContain('cannot be rendered');
    const path = `/admin/calls/${call.body.txn}/undo?wait=10`;
    expect((await gateway.admin('POST', path, { reason: 'r' })).status).toBe(409);
    expect((await gateway.admin('POST', path, { reason: 'r', args: { id: 'noargs' } })).body.code).toBe(
      'invalid_arguments',
    );
    const undone = await gateway.admin('POST', path, { reason: 'r', args: { id: 'noargs', effect: 'by hand' } });
    expect(undone.body.undo.state).toBe('done');
    expect(await readEffectRoutes('noargs')).toHaveLength(2);
  });

  it.each([
    [
      'the step was answered',
      'world.charge',
      'useless',
      ['apply', { reply: 200, body: { nothing: 'useful' } }] as const,
    ],
    ['a probe found the step', 'world.order', 'useless-probed', ['apply', 'drop'] as const],
  ])('read in the step why its undo has no arguments: %s', async (_, tool, id, steps) => {
    await upstream.plan({ match: { id, method: 'POST' }, do: [...steps] });
    if (tool === 'world.order')
      await upstream.plan({ match: { id, method: 'GET' }, do: [{ reply: 200, body: { found: true, order: 7 } }] });
    const saga = await TestSaga.open(gateway);
    expect((await saga.callStep(tool, { id })).status).toBe(200);
    const { body } = await saga.rollback();
    const reason = /^the undo arguments cannot be rendered: .*\bid\b/;
    expect(body).toMatchObject({
      state: 'parked',
      steps: [{ undo: { state: 'failed', reason: expect.stringMatching(reason) } }],
    });
    expect(body.reason).toContain(body.steps[0].undo.reason);
  });

  it.each([
    ['a read', 'world.look', { id: 'undo-r' }, /nothing/],
    ['an irreversible write', 'world.mail', { id: 'undo-m' }, /irreversible/],
    ['a write without an undo', 'world.plain', { id: 'undo-p' }, /names no undo/],
  ])('cannot undo %s', async (_, tool, args, detail) => {
    await gateway.call('world.write', { id: 'undo-r', text: 'there' });
    const call = await gateway.call(tool, args);
    const reply = await gateway.admin('POST', `/admin/calls/${call.body.txn}/undo`, { reason: 'r' });
    expect(reply.status).toBe(409);
    expect(reply.body.detail).toMatch(detail);
  });

  it('see in an approval how the step would be undone', async () => {
    const saga = await TestSaga.open(gateway);
    const held = await saga.callStep('world.approved', { id: 'seen' }, { headers: { prefer: 'wait=0' } });
    const { body } = await gateway.admin('GET', '/admin/approvals?state=pending');
    const approval = body.items.find((item: { txn: string }) => item.txn === held.body.txn);
    expect(approval.undo.kind).toBe('none');
    await saga.rollback();
  });
});
