import { describe, expect, it } from 'vitest';
import {
  checkInvariants,
  type Observations,
  type ObservedCall,
  type ObservedEffect,
  type ObservedRequest,
} from './checker.ts';

const call = (overrides: Partial<ObservedCall> = {}): ObservedCall => ({
  txn: 't1',
  id: 'a',
  kind: 'none',
  states: ['sending', 'succeeded'],
  answers: [{ status: 200, body: { txn: 't1', state: 'succeeded', result: { id: 'eff_1' }, replayed: false } }],
  verdictsNotApplied: 0,
  ...overrides,
});
const request = (overrides: Partial<ObservedRequest> = {}): ObservedRequest => ({
  id: 'a',
  method: 'POST',
  url: '/none/mail',
  route: 'POST /none/mail',
  headers: { 'content-type': 'application/json' },
  key: null,
  bodySha256: 'aa',
  complete: true,
  at: 1000,
  ...overrides,
});
const keyed = (overrides: Partial<ObservedRequest> = {}) =>
  request({
    url: '/keyed/charge',
    route: 'POST /keyed/charge',
    key: 'k1',
    headers: { 'idempotency-key': 'k1', date: String(Math.random()), connection: 'close' },
    ...overrides,
  });
const effect = (overrides: Partial<ObservedEffect> = {}): ObservedEffect => ({
  n: 1,
  id: 'a',
  route: 'POST /none/mail',
  ...overrides,
});
const observations = (overrides: Partial<Observations> = {}): Observations => ({
  calls: [call()],
  requests: [request()],
  effects: [effect()],
  ...overrides,
});
const replay = { status: 200, body: { ...(call().answers[0]?.body as object), replayed: true } };
const failed = { status: 502, code: 'tool_failed', body: { code: 'tool_failed', txn: 't1' } };

describe('checkInvariants accepts', () => {
  it('one call of each kind', () => {
    expect(checkInvariants(observations())).toEqual([]);
    expect(checkInvariants(observations({ calls: [call({ kind: 'probe' })] }))).toEqual([]);
    expect(checkInvariants(observations({ calls: [call({ kind: 'key' })], requests: [keyed(), keyed()] }))).toEqual([]);
    expect(
      checkInvariants(observations({ calls: [call({ kind: 'idempotent' })], effects: [effect(), effect({ n: 2 })] })),
    ).toEqual([]);
    expect(checkInvariants(observations({ calls: [call({ kind: 'read' })], requests: [], effects: [] }))).toEqual([]);
  });

  it('a second attempt after a verdict; probes do not count as attempts', () => {
    const requests = [request(), request(), request({ method: 'GET' }), request({ method: 'GET' })];
    expect(
      checkInvariants(observations({ calls: [call({ kind: 'probe', verdictsNotApplied: 1 })], requests })),
    ).toEqual([]);
  });

  it('a doubt with or without an effect, and a failure without an effect', () => {
    const doubt = call({ states: ['sending', 'in_doubt'], answers: [{ status: 504, code: 'in_doubt' }] });
    expect(checkInvariants(observations({ calls: [doubt] }))).toEqual([]);
    expect(checkInvariants(observations({ calls: [doubt], effects: [] }))).toEqual([]);
    expect(
      checkInvariants(observations({ calls: [call({ states: ['failed'], answers: [failed] })], effects: [] })),
    ).toEqual([]);
  });

  it('replays, and earlier answers that are not final', () => {
    const before = { status: 409, code: 'in_progress', body: { code: 'in_progress' } };
    const calls = [
      call({ answers: [before, ...call().answers, replay, replay], expect: { oneUnmarked: true, oneSend: true } }),
    ];
    expect(checkInvariants(observations({ calls }))).toEqual([]);
  });

  it('a success without a send when the requested state already exists', () => {
    const answers = [{ status: 200, body: { state: 'succeeded', outcome: 'already_satisfied' } }];
    expect(checkInvariants(observations({ calls: [call({ answers })], requests: [], effects: [] }))).toEqual([]);
  });

  it('two calls with one id and different routes', () => {
    const put = call({ kind: 'idempotent', route: 'PUT /idempotent/objects' });
    const remove = call({
      ...put,
      txn: 't2',
      route: 'DELETE /idempotent/objects',
      states: ['failed'],
      answers: [failed],
    });
    const effects = [effect({ route: 'PUT /idempotent/objects' })];
    expect(checkInvariants(observations({ calls: [put, remove], effects }))).toEqual([]);
  });
});

describe('checkInvariants finds', () => {
  const expectViolations = (partial: Partial<Observations>, ...messages: RegExp[]) => {
    const violations = checkInvariants(observations(partial));
    for (const message of messages) expect(violations).toContainEqual(expect.stringMatching(message));
    expect(violations).not.toEqual([]);
  };

  it.each(['probe', 'none'] as const)('a second send of a %s tool, with or without an effect', (kind) => {
    expectViolations(
      { calls: [call({ kind })], requests: [request(), request()] },
      /^at most once: .* sent 2 times, allowed 1/,
    );
    expectViolations(
      { calls: [call({ kind, verdictsNotApplied: 1 })], requests: [request(), request(), request()] },
      /^at most once: .* sent 3 times, allowed 2/,
    );
  });

  it('two effects of a call whose second send a verdict permitted', () => {
    const calls = [call({ kind: 'probe', verdictsNotApplied: 1 })];
    expectViolations(
      { calls, requests: [request(), request()], effects: [effect(), effect({ n: 2 })] },
      /^at most once: .* 2 effects/,
    );
  });

  it('a second send whose body was cut, because it may have arrived', () => {
    expectViolations({ requests: [request(), request({ complete: false, bodySha256: null })] }, /^at most once: /);
  });

  it.each([
    ['key', keyed({ key: 'k2' }), /^same request: .* another key/],
    ['body', keyed({ bodySha256: 'bb' }), /^same request: .* another body/],
    ['URL', keyed({ url: '/keyed/charge?again=1' }), /^same request: .* another method or URL/],
    [
      'header',
      keyed({ headers: { 'idempotency-key': 'k1', 'x-attempt': '2' } }),
      /^same request: .* another set of headers/,
    ],
    ['no key at all', keyed({ key: null }), /^same request: .* without a key/],
  ])('a second attempt with another request: %s', (_difference, second, message) => {
    expectViolations({ calls: [call({ kind: 'key' })], requests: [keyed(), second] }, message);
  });

  it('a header that differs, unless varyingHeaders names it', () => {
    const requests = [keyed(), keyed({ headers: { 'idempotency-key': 'k1', traceparent: '00-1' } })];
    const partial = { calls: [call({ kind: 'key' })], requests };
    expectViolations(partial, /another set of headers/);
    expect(checkInvariants(observations({ ...partial, varyingHeaders: ['Traceparent'] }))).toEqual([]);
  });

  it('one key that two calls used', () => {
    const calls = [call({ kind: 'key' }), call({ kind: 'key', txn: 't2', id: 'b' })];
    const effects = [effect(), effect({ n: 2, id: 'b' })];
    expectViolations(
      { calls, requests: [keyed(), keyed({ id: 'b' })], effects },
      /^same request: .*t2.*t1.* one key, k1/,
    );
  });

  it('an attempt after the lifetime of its key, less the margin', () => {
    const calls = [call({ kind: 'key', lifetimeMs: 500, marginMs: 100 })];
    expect(checkInvariants(observations({ calls, requests: [keyed(), keyed({ at: 1400 })] }))).toEqual([]);
    expectViolations({ calls, requests: [keyed(), keyed({ at: 1401 })] }, /^same request: .* 401 ms .* allowed 400/);
  });

  it('a mismatch that the upstream counted', () => {
    expectViolations({ mismatches: 1 }, /^same request: .* another body once/);
  });

  it('a success with no effect or with two', () => {
    expectViolations({ effects: [] }, /^true state: .* is succeeded, but had 0 effects/);
    const twice = [effect(), effect({ n: 2 })];
    expectViolations(
      { calls: [call({ kind: 'key' })], requests: [keyed()], effects: twice },
      /^true state: .* is succeeded, but had 2/,
    );
    expectViolations({ calls: [call({ kind: 'idempotent' })], effects: [] }, /^true state: .* is succeeded, but had 0/);
  });

  it.each(['failed', 'rejected', 'expired', 'cancelled'])('a call in state %s that had an effect', (state) => {
    expectViolations(
      { calls: [call({ states: [state], answers: [] })] },
      new RegExp(`^true state: .* is ${state}, but had 1`),
    );
  });

  it('an answer that says failed about a call with an effect, even if no state was observed', () => {
    expectViolations({ calls: [call({ states: [], answers: [failed] })] }, /^true state: .* is failed, but had 1/);
  });

  it('a doubt with two effects, and a read with one', () => {
    const calls = [call({ kind: 'key', states: ['in_doubt'], answers: [] })];
    expectViolations(
      { calls, requests: [keyed()], effects: [effect(), effect({ n: 2 })] },
      /^true state: .* is in_doubt, but had 2/,
    );
    expectViolations({ calls: [call({ kind: 'read' })] }, /^true state: /);
  });

  it('a state that goes backwards', () => {
    expectViolations(
      { calls: [call({ states: ['sending', 'ready', 'succeeded'] })] },
      /^state history: .* backwards from sending to ready/,
    );
    expectViolations(
      { calls: [call({ states: ['in_doubt', 'sending', 'succeeded'] })] },
      /^state history: .* backwards from in_doubt/,
    );
  });

  it('a final state that changes, even to another final state', () => {
    expectViolations(
      { calls: [call({ states: ['failed', 'succeeded'] })] },
      /^state history: .* left the final state failed/,
    );
    expectViolations(
      { calls: [call({ states: ['succeeded', 'in_doubt'] })] },
      /^state history: .* left the final state succeeded/,
    );
    expectViolations(
      { calls: [call({ answers: [...call().answers, failed] })] },
      /^state history: .* succeeded and failed/,
    );
  });

  it('a state that does not exist', () => {
    expectViolations({ calls: [call({ states: ['lost'] })] }, /^state history: .* unknown state "lost"/);
  });

  it('a replay with another result', () => {
    const other = { status: 200, body: { ...replay.body, result: { id: 'eff_2' } } };
    expectViolations(
      { calls: [call({ answers: [...call().answers, other] })] },
      /^stable result: .* success 2 of 2 differs/,
    );
  });

  it('final answers that are not equal', () => {
    const other = { ...failed, body: { ...failed.body, upstream: { status: 500 } } };
    expectViolations(
      { calls: [call({ states: ['failed'], answers: [failed, other] })], effects: [] },
      /^one call per key: .* answer 2 of 2/,
    );
  });

  it('no answer without the replay mark, or two of them', () => {
    const oneUnmarked = { expect: { oneUnmarked: true } };
    expectViolations(
      { calls: [call({ answers: [replay, replay], ...oneUnmarked })] },
      /^one call per key: .* 0 of 2 .* expected 1/,
    );
    const twice = [...call().answers, ...call().answers];
    expectViolations(
      { calls: [call({ answers: twice, ...oneUnmarked })] },
      /^one call per key: .* 2 of 2 .* expected 1/,
    );
    expect(checkInvariants(observations({ calls: [call({ answers: twice })] }))).toEqual([]);
  });

  it('no fault in a replay that only its header marks', () => {
    const marked = { ...failed, replayed: true };
    const calls = [call({ states: ['failed'], answers: [failed, marked], expect: { oneUnmarked: true } })];
    expect(checkInvariants(observations({ calls, effects: [] }))).toEqual([]);
  });

  it('more than one send where exactly one is expected', () => {
    const calls = [call({ kind: 'key', expect: { oneSend: true } })];
    expectViolations({ calls, requests: [keyed(), keyed()] }, /^one call per key: .* sent 2 times, expected once/);
  });
});
