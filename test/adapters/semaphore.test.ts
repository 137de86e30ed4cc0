import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { Semaphore } from '../../adapters/semaphore.ts';

it('limits the holders, and admits waiters in order of arrival', async () => {
  const semaphore = new Semaphore(3);
  const order: number[] = [];
  let holders = 0;
  let maxHolders = 0;
  await Promise.all(
    Array.from({ length: 40 }, async (_, i) => {
      const release = await semaphore.acquire(10_000);
      order.push(i);
      holders += 1;
      maxHolders = Math.max(maxHolders, holders);
      await sleep(i % 5);
      holders -= 1;
      release?.();
    }),
  );
  expect(maxHolders).toBe(3);
  expect(order).toEqual(Array.from({ length: 40 }, (_, i) => i));
});

it('refuses at once when the queue is full', async () => {
  const semaphore = new Semaphore(1, 2);
  const release = await semaphore.acquire(1_000);
  const queued = [semaphore.acquire(1_000), semaphore.acquire(1_000)];
  expect(await semaphore.acquire(1_000)).toBeUndefined();
  release?.();
  (await queued[0])?.();
  (await queued[1])?.();
  expect(await semaphore.acquire(1_000)).toBeDefined();
});

it('keeps no permit for a waiter that timed out, and releases only once', async () => {
  const semaphore = new Semaphore(1);
  const release = await semaphore.acquire(1_000);
  expect(await semaphore.acquire(5)).toBeUndefined();
  release?.();
  release?.();
  const second = await semaphore.acquire(5);
  expect(second).toBeDefined();
  expect(await semaphore.acquire(5)).toBeUndefined();
  second?.();
  expect(await semaphore.acquire(5)).toBeDefined();
});
