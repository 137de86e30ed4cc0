import { afterAll, afterEach, beforeAll, beforeEach, onTestFinished } from 'vitest';

/** How long a resource lives: for all tests of a file (or of a `describe`), or for one test each. */
export type Scope = 'file' | 'test';

/**
 * Starts a resource before the tests and stops it after them. Resources start in the order of these calls and stop in
 * reverse order, so a later resource can use an earlier one.
 *
 * The result is a proxy, so that a test file can keep it in a `const` before the resource starts. Only tests, hooks and
 * the `start` of later resources may use it.
 */
export function useResource<T extends object>(
  start: () => T | Promise<T>,
  stop: (resource: T) => unknown,
  scope: Scope = 'file',
): T {
  let current: T | undefined;
  const [before, after] = scope === 'file' ? [beforeAll, afterAll] : [beforeEach, afterEach];
  before(async () => {
    current = await start();
  });
  after(async () => {
    const resource = current;
    current = undefined;
    if (resource !== undefined) await stop(resource);
  });
  return forwardTo(() => {
    if (current === undefined)
      throw new Error(
        'This resource is not running. Use it only in tests, in hooks, or in the `start` of a later resource.',
      );
    return current;
  });
}

/** Stops a resource when the current test ends. */
export async function stopAfterTest<T>(resource: T | Promise<T>, stop: (resource: T) => unknown): Promise<T> {
  const started = await resource;
  onTestFinished(async () => {
    await stop(started);
  });
  return started;
}

/** A proxy that forwards every access to the object that `current` returns at that moment. */
export function forwardTo<T extends object>(current: () => T): T {
  return new Proxy({} as T, {
    get: (_, name) => {
      const target = current();
      const value = Reflect.get(target, name, target);
      // Bound, because a method that uses private fields must be called on the object itself.
      return typeof value === 'function' ? value.bind(target) : value;
    },
    set: (_, name, value) => {
      const target = current();
      return Reflect.set(target, name, value, target);
    },
    has: (_, name) => Reflect.has(current(), name),
  });
}
