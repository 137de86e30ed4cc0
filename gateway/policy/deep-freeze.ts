/** Freezes a value and everything below it, because all running calls share the policies. */
export function deepFreeze<T>(value: T): T {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value) || ArrayBuffer.isView(value)) return value;
  if (value instanceof Map || value instanceof Set) {
    for (const [key, item] of value.entries()) {
      deepFreeze(key);
      deepFreeze(item);
    }
    // Object.freeze does not protect the entries of a Map or Set.
    for (const method of ['set', 'add', 'delete', 'clear']) {
      if (method in value) Object.defineProperty(value, method, { value: throwFrozen });
    }
  } else for (const item of Object.values(value)) deepFreeze(item);
  return Object.freeze(value);
}

function throwFrozen(): never {
  throw new TypeError('Policies are frozen and cannot be changed.');
}
