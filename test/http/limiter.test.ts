import rateLimit from '@fastify/rate-limit';
import Fastify, { type FastifyRequest } from 'fastify';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { GatewayError } from '../../gateway/domain/errors.ts';
import { Limiter, Stores } from '../../gateway/http/transport/limiter.ts';

const RATE = { limit: 4, perMs: 10_000 };
const STEPS = 4_000;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['Date'], now: 1_000_000 });
});
afterEach(() => {
  vi.useRealTimers();
});

/** Numbers that are the same in every run. */
function numbers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** One of these many milliseconds pass. */
function pass(next: (below: number) => number, ms: readonly number[]): void {
  vi.setSystemTime(Date.now() + (ms[next(ms.length)] ?? 0));
}

const from = (name: string) => ({ ip: name, routeOptions: {} }) as unknown as FastifyRequest;
const nameOf = ({ ip }: FastifyRequest) => ip;

/** What the plugin says with its own store. */
async function theirs(cache?: number) {
  const app = Fastify();
  await app.register(rateLimit, { global: false });
  const options = { max: RATE.limit, timeWindow: RATE.perMs, keyGenerator: nameOf, cache };
  const check = app.createRateLimit(options);
  return async (name: string, count: boolean) => {
    const found = await check(from(name), { increment: count });
    if (found.isAllowed) throw new Error('nobody is on a list');
    const isTooMuch = found.isExceeded || (!count && found.remaining === 0);
    return isTooMuch ? `wait ${Math.max(1, found.ttlInSeconds)}` : 'in';
  };
}

async function ours(most: number) {
  const app = Fastify();
  await app.register(rateLimit, { global: false, store: Stores });
  return new Limiter(app, RATE, most, nameOf);
}

async function told(asked: Promise<void>): Promise<string> {
  return asked.then(
    () => 'in',
    (error: unknown) => `wait ${error instanceof GatewayError ? error.extras.retryAfterSeconds : error}`,
  );
}

it('whoever is let in before the plugin is asked would have been let in by it, and nobody else is', async () => {
  const next = numbers(7);
  const theirWord = await theirs();
  const limiter = await ours(Number.POSITIVE_INFINITY);
  const seen = { spared: 0, in: 0, refused: 0 };
  for (let step = 0; step < STEPS; step += 1) {
    pass(next, [0, 1, 300, 2_000, 10_000]);
    const name = `agent ${next(4)}`;
    const isSpared = limiter.admits(name);
    const word = isSpared ? 'in' : await told(limiter.ask(from(name), true));
    expect(word, `step ${step}`).toBe(await theirWord(name, true));
    seen[isSpared ? 'spared' : word === 'in' ? 'in' : 'refused'] += 1;
  }
  for (const times of Object.values(seen)) expect(times).toBeGreaterThan(100);
});

it('addresses are remembered, looked at and forgotten as the plugin does it', async () => {
  const next = numbers(11);
  const theirWord = await theirs(3);
  const limiter = await ours(3);
  let refused = 0;
  for (let step = 0; step < STEPS; step += 1) {
    pass(next, [0, 1, 100, 1_000, 3_000]);
    const name = `10.0.0.${Math.min(next(6), next(6))}`;
    const count = next(3) > 0;
    const word = await told(limiter.ask(from(name), count));
    expect(word, `step ${step}`).toBe(await theirWord(name, count));
    if (word !== 'in') refused += 1;
  }
  expect(refused).toBeGreaterThan(100);
});
