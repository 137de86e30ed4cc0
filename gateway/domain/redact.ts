import { isObject, type Json } from './json.ts';

export const REDACTED = '[redacted]';

/** Replaces what stands at each path; `*` means every element or member. Paths that lead nowhere are ignored. */
export function redact(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path), value);
}

/** The paths below one root: `['args','card']` under `args` is `['card']`. */
export function pathsUnder(
  root: 'args' | 'result',
  paths: readonly (readonly string[])[],
): readonly (readonly string[])[] {
  return paths.filter((path) => path[0] === root).map((path) => path.slice(1));
}

function replaceAt(value: Json, path: readonly string[]): Json {
  const [head, ...rest] = path;
  if (head === undefined) return REDACTED;
  if (Array.isArray(value)) {
    return value.map((item, i) =>
      head === '*' || head === String(i) ? replaceAt(item as Json, rest) : (item as Json),
    );
  }
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      name,
      head === '*' || head === name ? replaceAt(member, rest) : member,
    ]),
  );
}
