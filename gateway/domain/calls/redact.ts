import { isJsonObject, type Json, type JsonObject } from '../json.ts';
import { buildSecretFinder } from './find-secrets.ts';

export const REDACTED = '[redacted]';

/** Replaces what stands at each path; `*` means every element or member. Paths that lead nowhere are ignored. */
export function redact(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path, () => REDACTED), value);
}

/** The same, but what is an object or an array stays one: an expression may look into it. */
export function redactLeaves(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path, (at) => blankLeaves(at, false)), value);
}

/** And every object has a member more than it had: what an expression makes of all its members is told by that. */
export function redactLeavesAndNames(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path, (at) => blankLeaves(at, true)), value);
}

function blankLeaves(value: Json, isMarked: boolean): Json {
  if (value === null) return null;
  if (Array.isArray(value)) return value.map((item) => blankLeaves(item as Json, isMarked));
  if (!isJsonObject(value)) return REDACTED;
  const members = Object.entries(value).map(([name, member]) => [name, blankLeaves(member, isMarked)] as const);
  return Object.fromEntries(isMarked ? [...members, [findUnusedName(value), REDACTED]] : members);
}

function findUnusedName(value: JsonObject): string {
  let name = REDACTED;
  while (Object.hasOwn(value, name)) name += ' ';
  return name;
}

/** The paths below one root: `['args','card']` under `args` is `['card']`. */
export function pathsUnder(
  root: 'args' | 'result',
  paths: readonly (readonly string[])[],
): readonly (readonly string[])[] {
  return paths.filter((path) => path[0] === root).map((path) => path.slice(1));
}

function replaceAt(value: Json, path: readonly string[], by: (value: Json) => Json): Json {
  const [head, ...rest] = path;
  if (head === undefined) return by(value);
  if (Array.isArray(value)) {
    return value.map((item, i) =>
      head === '*' || head === String(i) ? replaceAt(item as Json, rest, by) : (item as Json),
    );
  }
  if (!isJsonObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      name,
      head === '*' || head === name ? replaceAt(member, rest, by) : member,
    ]),
  );
}

/** The strings and numbers that stand at the paths, however deep below them. */
export function collectLeavesAt(value: Json, paths: readonly (readonly string[])[]): (string | number)[] {
  return paths.flatMap((path) => collectLeaves(value, path));
}

function collectLeaves(value: Json, path: readonly string[]): (string | number)[] {
  const [head, ...rest] = path;
  if (typeof value === 'string' || typeof value === 'number') return head === undefined ? [value] : [];
  if (typeof value !== 'object' || value === null) return [];
  return Object.entries(value)
    .filter(([name]) => head === undefined || head === '*' || head === name)
    .flatMap(([, member]) => collectLeaves(member as Json, rest));
}

/** The strings and numbers of a value that are not in what is shown of it. */
export function collectHiddenLeaves(exact: Json, shown: Json | undefined): (string | number)[] {
  if (shown === REDACTED) return exact === REDACTED ? [] : collectLeaves(exact, []);
  if (typeof exact !== 'object' || exact === null || typeof shown !== 'object' || shown === null) return [];
  const seen = new Map(Object.entries(shown));
  return Object.entries(exact).flatMap(([name, member]) => collectHiddenLeaves(member as Json, seen.get(name)));
}

/** Takes secrets out of texts; undefined when it takes too long to tell where they are. */
export type SecretScrubber = (text: string) => string | undefined;

export function buildSecretScrubber(secrets: readonly string[]): SecretScrubber {
  const find = buildSecretFinder(secrets);
  return (text) => {
    const spans = find(text);
    if (spans === undefined) return undefined;
    if (spans.length === 0) return text;
    const rest = spans.map(({ end }, i) => text.slice(end, spans[i + 1]?.start));
    return text.slice(0, spans[0]?.start) + REDACTED + rest.join(REDACTED);
  };
}

/**
 * Takes secrets out of a text, also where JSON wrote them with escapes (`\/` and `\u002f` are slashes to whoever parses it). A
 * text that cannot be looked through is not told at all.
 */
export function scrub(text: string, secrets: readonly string[]): string {
  return secrets.length === 0 ? text : (buildSecretScrubber(secrets)(text) ?? REDACTED);
}

/**
 * Takes an upstream's credentials out of what it says: as `scrub` does, and as they look in a URL, in base64 or in
 * hexadecimal digits. Made once for an upstream.
 */
export function buildCredentialScrubber(credentials: readonly string[]): (text: string) => string {
  const clean = buildSecretScrubber([...credentials, ...credentials.flatMap(listEncodings)]);
  return (text) => clean(text) ?? REDACTED;
}

function listEncodings(secret: string): string[] {
  const bytes = Buffer.from(secret, 'utf8');
  const hex = bytes.toString('hex');
  const url = encodeURIComponent(secret);
  const base64 = bytes.toString('base64');
  const inUrls = [url, url.replaceAll('%20', '+'), url.replaceAll(/%../g, (code) => code.toLowerCase())];
  const inBase64 = [base64, base64.replace(/=+$/, ''), bytes.toString('base64url')];
  return [...inUrls, ...inBase64, hex, hex.toUpperCase()];
}

/** A text as it looks in bytes that are read as one character each. */
export function toLatin1(text: string): string {
  return Buffer.from(text, 'utf8').toString('latin1');
}
