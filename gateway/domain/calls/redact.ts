import { isJsonObject, type Json, type JsonObject } from '../json.ts';
import { buildSecretFinder } from './find-secrets.ts';

export const REDACTED = '[redacted]';

/** Replaces the value at each path; `*` means every element or member. Paths that match nothing are ignored. */
export function redact(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path, () => REDACTED), value);
}

/** Like `redact`, but keeps objects and arrays, so that an expression can still read their members. */
export function redactLeaves(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path, (at) => blankLeaves(at, false)), value);
}

/** Like `redactLeaves`, but adds a member to every object, to change values that depend on the names or number of members too. */
export function redactLeavesAndNames(value: Json, paths: readonly (readonly string[])[]): Json {
  return paths.reduce((current, path) => replaceAt(current, path, (at) => blankLeaves(at, true)), value);
}

function blankLeaves(value: Json, addsMember: boolean): Json {
  if (value === null) return null;
  if (Array.isArray(value)) return value.map((item) => blankLeaves(item as Json, addsMember));
  if (!isJsonObject(value)) return REDACTED;
  const members = Object.entries(value).map(([name, member]) => [name, blankLeaves(member, addsMember)] as const);
  return Object.fromEntries(addsMember ? [...members, [findUnusedName(value), REDACTED]] : members);
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

function replaceAt(value: Json, path: readonly string[], replace: (value: Json) => Json): Json {
  const [head, ...rest] = path;
  if (head === undefined) return replace(value);
  if (Array.isArray(value)) {
    return value.map((item, i) =>
      head === '*' || head === String(i) ? replaceAt(item as Json, rest, replace) : (item as Json),
    );
  }
  if (!isJsonObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      name,
      head === '*' || head === name ? replaceAt(member, rest, replace) : member,
    ]),
  );
}

/** The strings and numbers at the paths or below them. */
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

/** The strings and numbers of `exact` that `shown` redacts. */
export function collectHiddenLeaves(exact: Json, shown: Json | undefined): (string | number)[] {
  if (shown === REDACTED) return exact === REDACTED ? [] : collectLeaves(exact, []);
  if (typeof exact !== 'object' || exact === null || typeof shown !== 'object' || shown === null) return [];
  const shownMembers = new Map(Object.entries(shown));
  return Object.entries(exact).flatMap(([name, member]) => collectHiddenLeaves(member as Json, shownMembers.get(name)));
}

/** Replaces secrets in a text; returns undefined when the search takes too long. */
export type SecretScrubber = (text: string) => string | undefined;

export function buildSecretScrubber(secrets: readonly string[]): SecretScrubber {
  const find = buildSecretFinder(secrets);
  return (text) => {
    const ranges = find(text);
    if (ranges === undefined) return undefined;
    if (ranges.length === 0) return text;
    const rest = ranges.map(({ end }, i) => text.slice(end, ranges[i + 1]?.start));
    return text.slice(0, ranges[0]?.start) + REDACTED + rest.join(REDACTED);
  };
}

/** Replaces secrets in a text, also where JSON escapes them. A text whose search takes too long is redacted entirely. */
export function scrub(text: string, secrets: readonly string[]): string {
  return secrets.length === 0 ? text : (buildSecretScrubber(secrets)(text) ?? REDACTED);
}

/** Builds the scrubber of an upstream, once. It also replaces credentials that are encoded for a URL, in base64 or in hex. */
export function buildCredentialScrubber(credentials: readonly string[]): (text: string) => string {
  const scrubSecrets = buildSecretScrubber([...credentials, ...credentials.flatMap(listEncodings)]);
  return (text) => scrubSecrets(text) ?? REDACTED;
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

/** The UTF-8 bytes of a text, one character per byte. */
export function toLatin1(text: string): string {
  return Buffer.from(text, 'utf8').toString('latin1');
}
