import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { CircuitBreakerAdapter } from '../../adapters/circuit-breaker.ts';
import type { Adapter, Outcome, SendOptions, UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import type { Tool, Upstream } from '../../gateway/domain/policy.ts';

const COOLDOWN_MS = 60;
const answer = (status: number): UpstreamAnswer => ({ status, contentType: null, body: '{}', encoding: 'utf8' });
const OK: Outcome = { kind: 'ok', answer: answer(200) };
const FAILED: Outcome = { kind: 'ambiguous', detail: 'the upstream answered 500', answer: answer(500) };
const SILENT: Outcome = { kind: 'ambiguous', detail: 'no answer within 5 ms' };
const REQUEST = { method: 'POST', path: '/', headers: {}, body: null };

const tool = (by: 'key' | 'idempotent' | 'probe' | 'none', effect = 'write') =>
  ({ name: `t.${by}`, effect, once: { by } }) as unknown as Tool;
const READ = tool('none', 'read');
const KEY = tool('key');
const NONE = tool('none');

/** An adapter with scripted outcomes. Like a real adapter, it calls `maySend` right before the first byte. */
class ScriptedAdapter implements Adapter {
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

const breakers: CircuitBreakerAdapter[] = [];
afterEach(async () => {
  for (const breaker of breakers.splice(0)) await breaker.close();
});

function createBreaker(concurrency = 8) {
  const adapter = new ScriptedAdapter();
  const manual = { isOpen: false };
  const settings = { threshold: 0.5, minimum: 4, windowMs: 10_000, cooldownMs: COOLDOWN_MS };
  const upstream = { name: 'world', concurrency, breaker: settings } as Upstream;
  const breaker = new CircuitBreakerAdapter(upstream, adapter, () => manual.isOpen);
  breakers.push(breaker);
  const send = (what: Tool, options: Partial<SendOptions> = {}) =>
    breaker.send(what, REQUEST, { timeoutMs: 2_000, freshConnection: false, maySend: () => true, ...options });
  const failUntilOpen = async () => {
    for (let i = 0; i < 5 && breaker.state === 'closed'; i += 1) {
      adapter.answers.push(FAILED);
      await send(READ);
    }
    expect(breaker.state).toBe('open');
    adapter.sent = [];
  };
  const waitForHalfOpen = () => expect.poll(() => breaker.state, { interval: 2 }).toBe('half_open');
  return { adapter, manual, breaker, send, failUntilOpen, waitForHalfOpen };
}

function deferred<T>() {
  let resolve = (_: T) => {};
  const promise = new Promise<T>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

describe('a circuit breaker', () => {
  it.each<[string, Outcome]>([
    ['400', { kind: 'refused', answer: answer(400) }],
    ['404', { kind: 'refused', answer: answer(404) }],
    ['429', { kind: 'refused', answer: answer(429) }],
    ['409, which proves nothing', { kind: 'ambiguous', detail: '', answer: answer(409) }],
    ['our own refusal of an address', { kind: 'not_sent', detail: '', refusedHere: true }],
    ['a lost right to send', { kind: 'not_sent', detail: '', abandoned: true }],
    ['a body that was cut after 200', { kind: 'ok_body_lost', detail: '', answer: answer(200) }],
  ])('is never opened by %s', async (_, outcome) => {
    const { adapter, breaker, send } = createBreaker();
    for (let i = 0; i < 50; i += 1) {
      adapter.answers.push(outcome);
      expect(await send(KEY)).toEqual(outcome);
    }
    expect(breaker.state).toBe('closed');
  });

  it.each<[string, Outcome]>([
    ['a 500', FAILED],
    ['silence', SILENT],
    ['no connection', { kind: 'not_sent', detail: 'connect ECONNREFUSED' }],
  ])('is opened by %s, returns the outcome unchanged, and then sends nothing', async (_, outcome) => {
    const { adapter, breaker, send } = createBreaker();
    for (let i = 0; i < 5 && breaker.state === 'closed'; i += 1) {
      adapter.answers.push(outcome);
      expect(await send(KEY)).toEqual(outcome);
    }
    expect(breaker.state).toBe('open');
    adapter.sent = [];
    for (const what of [READ, KEY, NONE]) {
      expect(breaker.getCooldownMs(what)).toBeGreaterThan(0);
      expect(await send(what)).toMatchObject({ kind: 'not_sent', heldBack: true });
    }
    expect(adapter.sent).toEqual([]);
  });

  it('that is half open admits one trial, and no write that cannot be repeated', async () => {
    const { adapter, breaker, send, failUntilOpen, waitForHalfOpen } = createBreaker();
    await failUntilOpen();
    await waitForHalfOpen();
    for (const what of [NONE, tool('probe')]) {
      expect(breaker.getCooldownMs(what)).toBeGreaterThan(0);
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
    expect(breaker.state).toBe('closed');
    expect(await send(NONE)).toEqual(OK);
  });

  it('stays open when its trial fails', async () => {
    const { adapter, breaker, send, failUntilOpen, waitForHalfOpen } = createBreaker();
    await failUntilOpen();
    await waitForHalfOpen();
    adapter.answers.push(SILENT);
    expect(await send(KEY)).toEqual(SILENT);
    expect(breaker.state).toBe('open');
  });

  it('ignores a trial that was not sent', async () => {
    const { breaker, send, failUntilOpen, waitForHalfOpen } = createBreaker();
    await failUntilOpen();
    await waitForHalfOpen();
    expect(await send(KEY, { maySend: () => false })).toMatchObject({ kind: 'not_sent', abandoned: true });
    expect(breaker.state).toBe('open');
    await waitForHalfOpen();
    expect(await send(KEY)).toEqual(OK);
    expect(breaker.state).toBe('closed');
  });

  it('that opens does not affect calls in flight', async () => {
    const { adapter, breaker, send, failUntilOpen } = createBreaker();
    const [lost, fine] = [deferred<Outcome>(), deferred<Outcome>()];
    adapter.answers.push(lost.promise, fine.promise);
    const none = send(NONE);
    const key = send(KEY);
    await failUntilOpen();
    lost.resolve(SILENT);
    fine.resolve(OK);
    expect(await none).toEqual(SILENT);
    expect(await key).toEqual(OK);
    expect(breaker.state).toBe('open');
  });

  it('that opened while calls waited stops them, by itself or by hand', async () => {
    for (const by of ['auto', 'hand'] as const) {
      const { adapter, manual, send } = createBreaker(1);
      const busy = deferred<Outcome>();
      adapter.answers.push(FAILED, FAILED, FAILED, busy.promise);
      for (let i = 0; i < 3; i += 1) await send(READ);
      const inside = send(READ);
      const queued = [send(NONE), send(KEY), send(NONE)];
      await sleep(1);
      if (by === 'hand') manual.isOpen = true;
      busy.resolve(by === 'auto' ? FAILED : OK);
      await inside;
      for (const outcome of await Promise.all(queued))
        expect(outcome).toMatchObject({ kind: 'not_sent', heldBack: true });
      expect(adapter.sent).toHaveLength(4);
    }
  });

  it('that opened while a call connected stops it, by itself or by hand', async () => {
    for (const by of ['auto', 'hand'] as const) {
      const { adapter, manual, send, failUntilOpen } = createBreaker();
      const connected = deferred<void>();
      adapter.connecting = connected.promise;
      const outcome = send(NONE);
      await sleep(1);
      adapter.connecting = undefined;
      if (by === 'auto') await failUntilOpen();
      else manual.isOpen = true;
      connected.resolve();
      expect(await outcome).toMatchObject({ kind: 'not_sent', heldBack: true });
      expect(adapter.sent).toEqual([]);
    }
  });

  it('opened by hand is open whatever it counted, and closed by hand forgets its counts', async () => {
    const { adapter, manual, breaker, send, failUntilOpen, waitForHalfOpen } = createBreaker();
    await failUntilOpen();
    await waitForHalfOpen();
    manual.isOpen = true;
    expect(breaker.state).toBe('open');
    expect(await send(READ)).toMatchObject({ kind: 'not_sent', heldBack: true });
    manual.isOpen = false;
    breaker.reset();
    expect(breaker.state).toBe('closed');
    // Fewer failures than the minimum: failures before the reset do not count.
    for (let round = 0; round < 3; round += 1) {
      adapter.answers.push(FAILED, FAILED);
      await send(READ);
      await send(READ);
      expect(breaker.state).toBe('closed');
      breaker.reset();
    }
  });

  it('that is reset does not change the outcome of a call in flight', async () => {
    const { adapter, breaker, send } = createBreaker();
    const [sick, fine] = [deferred<Outcome>(), deferred<Outcome>()];
    adapter.answers.push(sick.promise, fine.promise);
    const calls = [send(NONE), send(KEY)];
    breaker.reset();
    sick.resolve(SILENT);
    fine.resolve(OK);
    expect(await Promise.all(calls)).toEqual([SILENT, OK]);
  });
});

describe('concurrency', () => {
  it('is limited, the queue is bounded, and waiting does not reduce the timeout of the send', async () => {
    const { adapter, send, breaker } = createBreaker(2);
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
    expect(breaker.state).toBe('closed');
  });

  it('times out in the queue, which does not count as a failure of the upstream', async () => {
    const { adapter, send, breaker } = createBreaker(1);
    const slow = deferred<Outcome>();
    adapter.answers.push(slow.promise);
    const inside = send(NONE);
    const late = await Promise.all(Array.from({ length: 10 }, () => send(KEY, { timeoutMs: 10 })));
    for (const outcome of late) expect(outcome).toMatchObject({ kind: 'not_sent' });
    slow.resolve(OK);
    expect(await inside).toEqual(OK);
    expect(breaker.state).toBe('closed');
    expect(adapter.sent).toEqual(['t.none']);
  });
});
