import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { Semaphore } from '../../adapters/semaphore.ts';

it('lets so many through at once, the others in the order they came', async () => {
  const turnstile = new Semaphore(3);
  const order: number[] = [];
  let inside = 0;
  let most = 0;
  await Promise.all(
    Array.from({ length: 40 }, async (_, i) => {
      const leave = await turnstile.acquire(10_000);
      order.push(i);
      inside += 1;
      most = Math.max(most, inside);
      await sleep(i % 5);
      inside -= 1;
      leave?.();
    }),
  );
  expect(most).toBe(3);
  expect(order).toEqual(Array.from({ length: 40 }, (_, i) => i));
});

it('turns away whom the queue has no room for, at once', async () => {
  const turnstile = new Semaphore(1, 2);
  const leave = await turnstile.acquire(1_000);
  const queued = [turnstile.acquire(1_000), turnstile.acquire(1_000)];
  expect(await turnstile.acquire(1_000)).toBeUndefined();
  leave?.();
  (await queued[0])?.();
  (await queued[1])?.();
  expect(await turnstile.acquire(1_000)).toBeDefined();
});

it('keeps no place for whoever lost patience, and none is lost by leaving twice', async () => {
  const turnstile = new Semaphore(1);
  const leave = await turnstile.acquire(1_000);
  expect(await turnstile.acquire(5)).toBeUndefined();
  leave?.();
  leave?.();
  const again = await turnstile.acquire(5);
  expect(again).toBeDefined();
  expect(await turnstile.acquire(5)).toBeUndefined();
  again?.();
  expect(await turnstile.acquire(5)).toBeDefined();
});
