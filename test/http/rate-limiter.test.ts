import rateLimit from '@fastify/rate-limit';
import Fastify, { type FastifyRequest } from 'fastify';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { GatewayError } from '../../gateway/domain/errors.ts';
import { RateLimiter } from '../../gateway/http/transport/rate-limiter.ts';

const RATE = { limit: 4, perMs: 10_000 };
const STEPS = 4_000;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['Date'], now: 1_000_000 });
});
afterEach(() => {
  vi.useRealTimers();
});

/** A seeded generator of integers, so that every run is the same. */
function createIntegers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Advances the clock by one of these durations. */
function advanceClock(next: (below: number) => number, ms: readonly number[]): void {
  vi.setSystemTime(Date.now() + (ms[next(ms.length)] ?? 0));
}

const requestFrom = (name: string) => ({ ip: name, routeOptions: {} }) as unknown as FastifyRequest;

/** A reference model: fixed windows for the most recently used keys. */
function createModel(maxKeys: number) {
  const windows = new Map<string, { count: number; beganMs: number }>();
  return (key: string, isCounted: boolean): string => {
    const now = Date.now();
    const known = windows.get(key);
    windows.delete(key);
    if (known !== undefined) windows.set(key, known);
    const isOver = known === undefined || known.beganMs + RATE.perMs <= now;
    const window = isOver ? { count: 0, beganMs: now } : known;
    if (isCounted) {
      window.count += 1;
      windows.set(key, window);
      const [oldest = ''] = windows.keys();
      if (windows.size > maxKeys) windows.delete(oldest);
    }
    const isAdmitted = isCounted ? window.count <= RATE.limit : window.count < RATE.limit;
    return isAdmitted ? 'in' : `wait ${Math.max(1, Math.ceil((window.beganMs + RATE.perMs - now) / 1000))}`;
  };
}

async function createLimiter(maxKeys: number) {
  const app = Fastify();
  await app.register(rateLimit, { global: false });
  const limiter = new RateLimiter(app, RATE, { maxKeys, keyGenerator: ({ ip }) => ip });
  return (key: string, isCounted: boolean): Promise<string> =>
    limiter[isCounted ? 'count' : 'peek'](requestFrom(key)).then(
      () => 'in',
      (error: unknown) => `wait ${error instanceof GatewayError ? error.extras.retryAfterSeconds : error}`,
    );
}

it('admits as many requests per window as the limit says, and says when the next window begins', async () => {
  const next = createIntegers(7);
  const model = createModel(Number.POSITIVE_INFINITY);
  const limit = await createLimiter(0);
  const seen = { admitted: 0, refused: 0 };
  for (let step = 0; step < STEPS; step += 1) {
    advanceClock(next, [0, 1, 300, 2_000, 10_000]);
    const name = `agent ${next(4)}`;
    const answer = await limit(name, true);
    expect(answer, `step ${step}`).toBe(model(name, true));
    seen[answer === 'in' ? 'admitted' : 'refused'] += 1;
  }
  for (const times of Object.values(seen)) expect(times).toBeGreaterThan(100);
});

it('does not count a peek, and evicts the least recently used keys', async () => {
  const next = createIntegers(11);
  const model = createModel(3);
  const limit = await createLimiter(3);
  let refused = 0;
  for (let step = 0; step < STEPS; step += 1) {
    advanceClock(next, [0, 1, 100, 1_000, 3_000]);
    const name = `10.0.0.${Math.min(next(6), next(6))}`;
    const isCounted = next(3) > 0;
    const answer = await limit(name, isCounted);
    expect(answer, `step ${step}`).toBe(model(name, isCounted));
    if (answer !== 'in') refused += 1;
  }
  expect(refused).toBeGreaterThan(100);
});

it('keeps every key when maxKeys is 0', async () => {
  const limit = await createLimiter(0);
  for (let request = 0; request < RATE.limit; request += 1) await limit('first', true);
  for (let key = 0; key < 10_000; key += 1) await limit(`agent ${key}`, true);
  expect(await limit('first', true)).toBe('wait 10');
});
