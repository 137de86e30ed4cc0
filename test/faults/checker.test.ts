import { describe, expect, it } from 'vitest';
import {
  checkInvariants,
  type Observations,
  type ObservedCall,
  type ObservedEffect,
  type ObservedRequest,
} from './checker.ts';

const call = (over: Partial<ObservedCall> = {}): ObservedCall => ({
  txn: 't1',
  id: 'a',
  kind: 'none',
  states: ['sending', 'succeeded'],
  answers: [{ status: 200, body: { txn: 't1', state: 'succeeded', result: { id: 'eff_1' }, replayed: false } }],
  verdictsNotApplied: 0,
  ...over,
});
const request = (over: Partial<ObservedRequest> = {}): ObservedRequest => ({
  id: 'a',
  method: 'POST',
  url: '/none/mail',
  route: 'POST /none/mail',
  headers: { 'content-type': 'application/json' },
  key: null,
  bodySha256: 'aa',
  complete: true,
  at: 1000,
  ...over,
});
const keyed = (over: Partial<ObservedRequest> = {}) =>
  request({
    url: '/keyed/charge',
    route: 'POST /keyed/charge',
    key: 'k1',
    headers: { 'idempotency-key': 'k1', date: String(Math.random()), connection: 'close' },
    ...over,
  });
const effect = (over: Partial<ObservedEffect> = {}): ObservedEffect => ({
  n: 1,
  id: 'a',
  route: 'POST /none/mail',
  ...over,
});
const seen = (over: Partial<Observations> = {}): Observations => ({
  calls: [call()],
  requests: [request()],
  effects: [effect()],
  ...over,
});
const replay = { status: 200, body: { ...(call().answers[0]?.body as object), replayed: true } };
const failed = { status: 502, code: 'tool_failed', body: { code: 'tool_failed', txn: 't1' } };

describe('what is right passes', () => {
  it('one call of each kind', () => {
    expect(checkInvariants(seen())).toEqual([]);
    expect(checkInvariants(seen({ calls: [call({ kind: 'probe' })] }))).toEqual([]);
    expect(checkInvariants(seen({ calls: [call({ kind: 'key' })], requests: [keyed(), keyed()] }))).toEqual([]);
    expect(
      checkInvariants(seen({ calls: [call({ kind: 'idempotent' })], effects: [effect(), effect({ n: 2 })] })),
    ).toEqual([]);
    expect(checkInvariants(seen({ calls: [call({ kind: 'read' })], requests: [], effects: [] }))).toEqual([]);
  });

  it('another attempt after a verdict, and probes, which are no attempts', () => {
    const requests = [request(), request(), request({ method: 'GET' }), request({ method: 'GET' })];
    expect(checkInvariants(seen({ calls: [call({ kind: 'probe', verdictsNotApplied: 1 })], requests }))).toEqual([]);
  });

  it('a doubt with and without an effect, a failure without', () => {
    const doubt = call({ states: ['sending', 'in_doubt'], answers: [{ status: 504, code: 'in_doubt' }] });
    expect(checkInvariants(seen({ calls: [doubt] }))).toEqual([]);
    expect(checkInvariants(seen({ calls: [doubt], effects: [] }))).toEqual([]);
    expect(checkInvariants(seen({ calls: [call({ states: ['failed'], answers: [failed] })], effects: [] }))).toEqual(
      [],
    );
  });

  it('replays, and the answers given before the final one', () => {
    const before = { status: 409, code: 'in_progress', body: { code: 'in_progress' } };
    const calls = [
      call({ answers: [before, ...call().answers, replay, replay], expect: { oneUnmarked: true, oneSend: true } }),
    ];
    expect(checkInvariants(seen({ calls }))).toEqual([]);
  });

  it('an effect the gateway found to be there already', () => {
    const answers = [{ status: 200, body: { state: 'succeeded', outcome: 'already_satisfied' } }];
    expect(checkInvariants(seen({ calls: [call({ answers })], requests: [], effects: [] }))).toEqual([]);
  });

  it('two calls about one id, told apart by their route', () => {
    const put = call({ kind: 'idempotent', route: 'PUT /idempotent/objects' });
    const remove = call({
      ...put,
      txn: 't2',
      route: 'DELETE /idempotent/objects',
      states: ['failed'],
      answers: [failed],
    });
    const effects = [effect({ route: 'PUT /idempotent/objects' })];
    expect(checkInvariants(seen({ calls: [put, remove], effects }))).toEqual([]);
  });
});

describe('what is wrong is found', () => {
  const finds = (observations: Partial<Observations>, ...sentences: RegExp[]) => {
    const violations = checkInvariants(seen(observations));
    for (const sentence of sentences) expect(violations).toContainEqual(expect.stringMatching(sentence));
    expect(violations).not.toEqual([]);
  };

  it.each(['probe', 'none'] as const)('I1: a second send of a %s tool, effect or not', (kind) => {
    finds({ calls: [call({ kind })], requests: [request(), request()] }, /^I1: .* sent 2 times, allowed 1/);
    finds(
      { calls: [call({ kind, verdictsNotApplied: 1 })], requests: [request(), request(), request()] },
      /^I1: .* sent 3 times, allowed 2/,
    );
  });

  it('I1: two effects, though a verdict permitted the second send', () => {
    const calls = [call({ kind: 'probe', verdictsNotApplied: 1 })];
    finds({ calls, requests: [request(), request()], effects: [effect(), effect({ n: 2 })] }, /^I1: .* 2 effects/);
  });

  it('I1: a second send that was cut before its body ended may have arrived', () => {
    finds({ requests: [request(), request({ complete: false, bodySha256: null })] }, /^I1: /);
  });

  it.each([
    ['key', keyed({ key: 'k2' }), /^I2: .* another key/],
    ['body', keyed({ bodySha256: 'bb' }), /^I2: .* another body/],
    ['URL', keyed({ url: '/keyed/charge?again=1' }), /^I2: .* another method or URL/],
    ['header', keyed({ headers: { 'idempotency-key': 'k1', 'x-attempt': '2' } }), /^I2: .* another set of headers/],
    ['no key at all', keyed({ key: null }), /^I2: .* without a key/],
  ])('I2: an attempt with another request: %s', (_what, second, sentence) => {
    finds({ calls: [call({ kind: 'key' })], requests: [keyed(), second] }, sentence);
  });

  it('I2: headers are excused only by name', () => {
    const requests = [keyed(), keyed({ headers: { 'idempotency-key': 'k1', traceparent: '00-1' } })];
    const observations = { calls: [call({ kind: 'key' })], requests };
    finds(observations, /another set of headers/);
    expect(checkInvariants(seen({ ...observations, varyingHeaders: ['Traceparent'] }))).toEqual([]);
  });

  it('I2: one key for two calls', () => {
    const calls = [call({ kind: 'key' }), call({ kind: 'key', txn: 't2', id: 'b' })];
    const effects = [effect(), effect({ n: 2, id: 'b' })];
    finds({ calls, requests: [keyed(), keyed({ id: 'b' })], effects }, /^I2: .*t2.*t1.* one key, k1/);
  });

  it('I2: an attempt after the key may have been forgotten', () => {
    const calls = [call({ kind: 'key', lifetimeMs: 500, marginMs: 100 })];
    expect(checkInvariants(seen({ calls, requests: [keyed(), keyed({ at: 1400 })] }))).toEqual([]);
    finds({ calls, requests: [keyed(), keyed({ at: 1401 })] }, /^I2: .* 401 ms .* allowed 400/);
  });

  it('I2: the upstream itself saw a mismatch', () => {
    finds({ mismatches: 1 }, /^I2: .* another body once/);
  });

  it('I5: a success that did not happen, or happened twice', () => {
    finds({ effects: [] }, /^I5: .* is succeeded, but had 0 effects/);
    const twice = [effect(), effect({ n: 2 })];
    finds({ calls: [call({ kind: 'key' })], requests: [keyed()], effects: twice }, /^I5: .* is succeeded, but had 2/);
    finds({ calls: [call({ kind: 'idempotent' })], effects: [] }, /^I5: .* is succeeded, but had 0/);
  });

  it.each(['failed', 'rejected', 'expired', 'cancelled'])('I5: %s, and it happened', (state) => {
    finds({ calls: [call({ states: [state], answers: [] })] }, new RegExp(`^I5: .* is ${state}, but had 1`));
  });

  it('I5: an answer that says failed counts though nobody saw the state', () => {
    finds({ calls: [call({ states: [], answers: [failed] })] }, /^I5: .* is failed, but had 1/);
  });

  it('I5: a doubt about two effects; a read with one', () => {
    const calls = [call({ kind: 'key', states: ['in_doubt'], answers: [] })];
    finds({ calls, requests: [keyed()], effects: [effect(), effect({ n: 2 })] }, /^I5: .* is in_doubt, but had 2/);
    finds({ calls: [call({ kind: 'read' })] }, /^I5: /);
  });

  it('I6: a state that goes backwards', () => {
    finds({ calls: [call({ states: ['sending', 'ready', 'succeeded'] })] }, /^I6: .* backwards from sending to ready/);
    finds({ calls: [call({ states: ['in_doubt', 'sending', 'succeeded'] })] }, /^I6: .* backwards from in_doubt/);
  });

  it('I6: a final state that changes, for another final one too', () => {
    finds({ calls: [call({ states: ['failed', 'succeeded'] })] }, /^I6: .* left the final state failed/);
    finds({ calls: [call({ states: ['succeeded', 'in_doubt'] })] }, /^I6: .* left the final state succeeded/);
    finds({ calls: [call({ answers: [...call().answers, failed] })] }, /^I6: .* succeeded and failed/);
  });

  it('I6: a state nobody promised', () => {
    finds({ calls: [call({ states: ['lost'] })] }, /^I6: .* unknown state "lost"/);
  });

  it('I6: a replay with another result', () => {
    const other = { status: 200, body: { ...replay.body, result: { id: 'eff_2' } } };
    finds({ calls: [call({ answers: [...call().answers, other] })] }, /^I6: .* success 2 of 2 differs/);
  });

  it('I8: final answers that are not equal', () => {
    const other = { ...failed, body: { ...failed.body, upstream: { status: 500 } } };
    finds({ calls: [call({ states: ['failed'], answers: [failed, other] })], effects: [] }, /^I8: .* answer 2 of 2/);
  });

  it('I8: no unmarked answer, or two', () => {
    const oneUnmarked = { expect: { oneUnmarked: true } };
    finds({ calls: [call({ answers: [replay, replay], ...oneUnmarked })] }, /^I8: .* 0 of 2 .* expected 1/);
    const twice = [...call().answers, ...call().answers];
    finds({ calls: [call({ answers: twice, ...oneUnmarked })] }, /^I8: .* 2 of 2 .* expected 1/);
    expect(checkInvariants(seen({ calls: [call({ answers: twice })] }))).toEqual([]);
  });

  it('I8: the header marks what the body cannot', () => {
    const marked = { ...failed, replayed: true };
    const calls = [call({ states: ['failed'], answers: [failed, marked], expect: { oneUnmarked: true } })];
    expect(checkInvariants(seen({ calls, effects: [] }))).toEqual([]);
  });

  it('I8: more than one send where one was promised', () => {
    const calls = [call({ kind: 'key', expect: { oneSend: true } })];
    finds({ calls, requests: [keyed(), keyed()] }, /^I8: .* sent 2 times, expected once/);
  });
});
