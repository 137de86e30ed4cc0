import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { CircuitBreakerAdapter } from '../../adapters/circuit-breaker.ts';
import type { Adapter, Outcome, SendOptions, UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import type { Tool, Upstream } from '../../gateway/domain/policy.ts';

const COOLDOWN_MS = 60;
const answer = (status: number): UpstreamAnswer => ({ status, contentType: null, body: '{}', encoding: 'utf8' });
const OK: Outcome = { kind: 'ok', answer: answer(200) };
const SICK: Outcome = { kind: 'ambiguous', detail: 'the upstream answered 500', answer: answer(500) };
const SILENT: Outcome = { kind: 'ambiguous', detail: 'no answer within 5 ms' };
const REQUEST = { method: 'POST', path: '/', headers: {}, body: null };

const tool = (by: 'key' | 'idempotent' | 'probe' | 'none', effect = 'write') =>
  ({ name: `t.${by}`, effect, once: { by } }) as unknown as Tool;
const READ = tool('none', 'read');
const KEY = tool('key');
const NONE = tool('none');

/** An upstream that answers what it is told to; like the real adapter it asks `maySend` right before the first byte. */
class Scripted implements Adapter {
  sent: string[] = [];
  answers: (Outcome | Promise<Outcome>)[] = [];
  connecting: Promise<void> | undefined;

  prepare() {
    return REQUEST;
  }

  isAt() {
    return true;
  }

  async send(sent: Tool, _request: unknown, options: SendOptions): Promise<Outcome> {
    await this.connecting;
    if (!options.maySend()) return { kind: 'not_sent', detail: 'lost its right', abandoned: true };
    this.sent.push(sent.name);
    return (await this.answers.shift()) ?? OK;
  }

  async close() {}
}

const guards: CircuitBreakerAdapter[] = [];
afterEach(async () => {
  for (const guard of guards.splice(0)) await guard.close();
});

function guarded(concurrency = 8) {
  const adapter = new Scripted();
  const hand = { open: false };
  const breaker = { threshold: 0.5, minimum: 4, windowMs: 10_000, cooldownMs: COOLDOWN_MS };
  const upstream = { name: 'world', concurrency, breaker } as Upstream;
  const guard = new CircuitBreakerAdapter(upstream, adapter, () => hand.open);
  guards.push(guard);
  const send = (what: Tool, options: Partial<SendOptions> = {}) =>
    guard.send(what, REQUEST, { timeoutMs: 2_000, freshConnection: false, maySend: () => true, ...options });
  const sicken = async () => {
    for (let i = 0; i < 5 && guard.state === 'closed'; i += 1) {
      adapter.answers.push(SICK);
      await send(READ);
    }
    expect(guard.state).toBe('open');
    adapter.sent = [];
  };
  const halfOpen = () => expect.poll(() => guard.state, { interval: 2 }).toBe('half_open');
  return { adapter, hand, guard, send, sicken, halfOpen };
}

function deferred<T>() {
  let resolve = (_: T) => {};
  const promise = new Promise<T>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

describe('a breaker', () => {
  it.each<[string, Outcome]>([
    ['400', { kind: 'refused', answer: answer(400) }],
    ['404', { kind: 'refused', answer: answer(404) }],
    ['429', { kind: 'refused', answer: answer(429) }],
    ['409, which proves nothing', { kind: 'ambiguous', detail: '', answer: answer(409) }],
    ['our own refusal of an address', { kind: 'not_sent', detail: '', refusedHere: true }],
    ['a lost right to send', { kind: 'not_sent', detail: '', abandoned: true }],
    ['a body that was cut after 200', { kind: 'ok_body_lost', detail: '', answer: answer(200) }],
  ])('is never opened by %s', async (_, outcome) => {
    const { adapter, guard, send } = guarded();
    for (let i = 0; i < 50; i += 1) {
      adapter.answers.push(outcome);
      expect(await send(KEY)).toEqual(outcome);
    }
    expect(guard.state).toBe('closed');
  });

  it.each<[string, Outcome]>([
    ['a 500', SICK],
    ['silence', SILENT],
    ['no connection', { kind: 'not_sent', detail: 'connect ECONNREFUSED' }],
  ])('is opened by %s, tells it unchanged, and then sends nothing', async (_, outcome) => {
    const { adapter, guard, send } = guarded();
    for (let i = 0; i < 5 && guard.state === 'closed'; i += 1) {
      adapter.answers.push(outcome);
      expect(await send(KEY)).toEqual(outcome);
    }
    expect(guard.state).toBe('open');
    adapter.sent = [];
    for (const what of [READ, KEY, NONE]) {
      expect(guard.getCooldownMs(what)).toBeGreaterThan(0);
      expect(await send(what)).toMatchObject({ kind: 'not_sent', heldBack: true });
    }
    expect(adapter.sent).toEqual([]);
  });

  it('half open admits one trial, and no write that cannot be repeated', async () => {
    const { adapter, guard, send, sicken, halfOpen } = guarded();
    await sicken();
    await halfOpen();
    for (const what of [NONE, tool('probe')]) {
      expect(guard.getCooldownMs(what)).toBeGreaterThan(0);
      expect(await send(what)).toMatchObject({ kind: 'not_sent', heldBack: true });
    }
    const slow = deferred<Outcome>();
    adapter.answers.push(slow.promise);
    const trial = send(KEY);
    const others = await Promise.all([send(KEY), send(READ), send(tool('idempotent')), send(NONE)]);
    for (const other of others) expect(other).toMatchObject({ kind: 'not_sent', heldBack: true });
    expect(adapter.sent).toEqual(['t.key']);
    slow.resolve(OK);
    expect(await trial).toEqual(OK);
    expect(guard.state).toBe('closed');
    expect(await send(NONE)).toEqual(OK);
  });

  it('stays open when its trial fails', async () => {
    const { adapter, guard, send, sicken, halfOpen } = guarded();
    await sicken();
    await halfOpen();
    adapter.answers.push(SILENT);
    expect(await send(KEY)).toEqual(SILENT);
    expect(guard.state).toBe('open');
  });

  it('learns nothing from a trial that never left', async () => {
    const { guard, send, sicken, halfOpen } = guarded();
    await sicken();
    await halfOpen();
    expect(await send(KEY, { maySend: () => false })).toMatchObject({ kind: 'not_sent', abandoned: true });
    expect(guard.state).toBe('open');
    await halfOpen();
    expect(await send(KEY)).toEqual(OK);
    expect(guard.state).toBe('closed');
  });

  it('that opens changes nothing about what is on its way', async () => {
    const { adapter, guard, send, sicken } = guarded();
    const [lost, fine] = [deferred<Outcome>(), deferred<Outcome>()];
    adapter.answers.push(lost.promise, fine.promise);
    const none = send(NONE);
    const key = send(KEY);
    await sicken();
    lost.resolve(SILENT);
    fine.resolve(OK);
    expect(await none).toEqual(SILENT);
    expect(await key).toEqual(OK);
    expect(guard.state).toBe('open');
  });

  it('that opened while calls queued keeps them back, by itself or by hand', async () => {
    for (const by of ['auto', 'hand'] as const) {
      const { adapter, hand, send } = guarded(1);
      const busy = deferred<Outcome>();
      adapter.answers.push(SICK, SICK, SICK, busy.promise);
      for (let i = 0; i < 3; i += 1) await send(READ);
      const inside = send(READ);
      const queued = [send(NONE), send(KEY), send(NONE)];
      await sleep(1);
      if (by === 'hand') hand.open = true;
      busy.resolve(by === 'auto' ? SICK : OK);
      await inside;
      for (const outcome of await Promise.all(queued))
        expect(outcome).toMatchObject({ kind: 'not_sent', heldBack: true });
      expect(adapter.sent).toHaveLength(4);
    }
  });

  it('that opened while a call connected keeps it back, by itself or by hand', async () => {
    for (const by of ['auto', 'hand'] as const) {
      const { adapter, hand, send, sicken } = guarded();
      const connected = deferred<void>();
      adapter.connecting = connected.promise;
      const outcome = send(NONE);
      await sleep(1);
      adapter.connecting = undefined;
      if (by === 'auto') await sicken();
      else hand.open = true;
      connected.resolve();
      expect(await outcome).toMatchObject({ kind: 'not_sent', heldBack: true });
      expect(adapter.sent).toEqual([]);
    }
  });

  it('opened by hand beats its own judgement, and closed by hand forgets what was counted', async () => {
    const { adapter, hand, guard, send, sicken, halfOpen } = guarded();
    await sicken();
    await halfOpen();
    hand.open = true;
    expect(guard.state).toBe('open');
    expect(await send(READ)).toMatchObject({ kind: 'not_sent', heldBack: true });
    hand.open = false;
    guard.reset();
    expect(guard.state).toBe('closed');
    // Fewer failures than its minimum: what came before the reset does not count, closed or not.
    for (let round = 0; round < 3; round += 1) {
      adapter.answers.push(SICK, SICK);
      await send(READ);
      await send(READ);
      expect(guard.state).toBe('closed');
      guard.reset();
    }
  });

  it('reset under a call in flight leaves its outcome alone', async () => {
    const { adapter, guard, send } = guarded();
    const [sick, fine] = [deferred<Outcome>(), deferred<Outcome>()];
    adapter.answers.push(sick.promise, fine.promise);
    const calls = [send(NONE), send(KEY)];
    guard.reset();
    sick.resolve(SILENT);
    fine.resolve(OK);
    expect(await Promise.all(calls)).toEqual([SILENT, OK]);
  });
});

describe('concurrency', () => {
  it('is kept, the queue is bounded, and the time in it is not taken from the upstream', async () => {
    const { adapter, send, guard } = guarded(2);
    const slow = Array.from({ length: 2 }, () => deferred<Outcome>());
    adapter.answers.push(...slow.map(({ promise }) => promise));
    const timeouts: number[] = [];
    const original = adapter.send.bind(adapter);
    adapter.send = (what, request, options) => {
      timeouts.push(options.timeoutMs);
      return original(what, request, options);
    };
    const inside = [send(NONE), send(NONE)];
    const queued = Array.from({ length: 32 }, () => send(KEY));
    expect(await send(KEY)).toMatchObject({ kind: 'not_sent', detail: expect.stringContaining('busy') });
    expect(adapter.sent).toHaveLength(2);
    await sleep(30);
    for (const { resolve } of slow) resolve(OK);
    expect(await Promise.all([...inside, ...queued])).toEqual(Array(34).fill(OK));
    expect(new Set(timeouts)).toEqual(new Set([2_000]));
    expect(guard.state).toBe('closed');
  });

  it('gives up on a queue that does not move, which is not the upstream’s fault', async () => {
    const { adapter, send, guard } = guarded(1);
    const slow = deferred<Outcome>();
    adapter.answers.push(slow.promise);
    const inside = send(NONE);
    const late = await Promise.all(Array.from({ length: 10 }, () => send(KEY, { timeoutMs: 10 })));
    for (const outcome of late) expect(outcome).toMatchObject({ kind: 'not_sent' });
    slow.resolve(OK);
    expect(await inside).toEqual(OK);
    expect(guard.state).toBe('closed');
    expect(adapter.sent).toEqual(['t.none']);
  });
});
