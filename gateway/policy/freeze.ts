/** Policies are shared by everything that runs: nobody changes them, not even by mistake. */
export function freezeDeeply<T>(value: T): T {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value) || ArrayBuffer.isView(value)) return value;
  if (value instanceof Map || value instanceof Set) {
    for (const [key, item] of value.entries()) {
      freezeDeeply(key);
      freezeDeeply(item);
    }
    // Object.freeze does not reach what a Map or Set holds.
    for (const method of ['set', 'add', 'delete', 'clear']) {
      if (method in value) Object.defineProperty(value, method, { value: refuse });
    }
  } else for (const item of Object.values(value)) freezeDeeply(item);
  return Object.freeze(value);
}

function refuse(): never {
  throw new TypeError('policies are frozen');
}
