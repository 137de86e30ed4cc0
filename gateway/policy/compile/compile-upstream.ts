import { parseDurationMs } from '../../domain/duration.ts';
import type { Upstream } from '../../domain/policy.ts';
import type { DeclaredEntry } from '../declarations.ts';
import { type Diagnostics, locateChild } from '../faults.ts';
import { globSchema, type UpstreamDeclaration } from '../policy-file-schema.ts';
import { type Env, resolveSecrets } from '../resolve-secrets.ts';
import { formatShortValue } from '../zod-issues.ts';

export const UPSTREAM_DEFAULTS = {
  timeoutMs: 10_000,
  concurrency: 32,
  breaker: { threshold: 0.5, minimum: 10, windowMs: 10_000, cooldownMs: 15_000 },
} as const;

/** Headers that describe the message itself: the adapter writes them, and a second one would smuggle. */
const FRAMING_HEADERS = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'keep-alive',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

/** A header that only the gateway writes: of the message, or one by which services know a call and its locks. */
export function isReservedHeader(header: string): boolean {
  const lower = header.toLowerCase();
  return FRAMING_HEADERS.has(lower) || lower.startsWith('oncegate-');
}

/** Headers that say how a message is written or read: their words stand in answers too, and are no credential. */
const NON_SECRET_HEADERS = new Set(['accept', 'cache-control', 'origin', 'pragma', 'prefer', 'user-agent']);

function isNonSecretHeader(lower: string): boolean {
  return NON_SECRET_HEADERS.has(lower) || /^accept-|^content-(type|language|encoding)$|-version$/.test(lower);
}

const MIN_SECRET_LENGTH = 6;
const MIN_TOKEN_LENGTH = 16;
const MAX_TIMEOUT_MS = 24 * 3_600_000;

export function compileUpstream(
  declared: DeclaredEntry<UpstreamDeclaration>,
  env: Env,
  report: Diagnostics,
): Upstream | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  const resolve = (template: string, file: boolean, ...path: (string | number)[]) =>
    resolveSecrets(template, env, { file }, (message, offset) =>
      report.addError(locateChild(place, ...path), message, offset),
    );

  checkAdapterKeys(declared, value, report);
  const secrets = new Set<string>();
  const keepSecret = (values: readonly string[]): void => {
    for (const value of values) if (value.length >= MIN_SECRET_LENGTH) secrets.add(value);
  };
  const { text: url, values: inUrl } =
    value.url === undefined ? { text: undefined, values: [] } : resolve(value.url, false, 'url');
  if (url) checkUpstreamUrl(url, (message) => report.addError(locateChild(place, 'url'), message));
  for (const part of inUrl) keepSecret(findUrlSecrets(url ?? '', part));
  const words = value.command?.map((word, index) => resolve(word, false, 'command', index));
  for (const word of words ?? []) keepSecret(word.values.filter((filled) => !isFilePath(filled)));
  const headers: Record<string, string> = {};
  const own: Record<string, string> = {};
  for (const [variable, template] of Object.entries(value.env ?? {})) {
    const { text, values } = resolve(template, true, 'env', variable);
    if (text.includes('\0'))
      report.addError(locateChild(place, 'env', variable), `the value of ${variable} holds a NUL character`);
    own[variable] = text;
    keepSecret(values);
  }
  for (const [header, template] of Object.entries(value.headers ?? {})) {
    const fault = (message: string): void => report.addError(locateChild(place, 'headers', header), message);
    const { text, values } = resolve(template, true, 'headers', header);
    const lower = header.toLowerCase();
    if (isReservedHeader(lower)) fault(`${header} is written by the gateway itself`);
    if (lower in headers) fault(`${header} is there twice`);
    if (!/^[\t\x20-\x7e\x80-\xff]*$/.test(text)) fault(`the value of ${header} holds characters no header may have`);
    headers[lower] = text;
    keepSecret(values.length > 0 || !isNonSecretHeader(lower) ? [...values, text] : []);
  }
  const timeoutMs = value.timeout === undefined ? UPSTREAM_DEFAULTS.timeoutMs : parseDurationMs(value.timeout);
  if (timeoutMs > MAX_TIMEOUT_MS) report.addError(locateChild(place, 'timeout'), 'a timeout is at most 24h');
  return {
    name,
    adapter: value.adapter,
    ...(url !== undefined && { url }),
    ...(words !== undefined && { command: words.map(({ text }) => text), env: { ...pickInheritedEnv(env), ...own } }),
    headers,
    // The longest first: scrubbing a part must not leave the rest of the whole standing.
    secrets: [...secrets].sort((a, b) => b.length - a.length),
    timeoutMs,
    concurrency: value.concurrency ?? UPSTREAM_DEFAULTS.concurrency,
    breaker: compileBreaker(value.breaker ?? {}),
    allowPrivate: value.allowPrivate ?? false,
    ...(value.import !== undefined && value.adapter === 'mcp' && { import: value.import }),
    expose: value.expose ?? 'prefixed',
    ...(value.untrusted === true && { untrusted: true as const }),
  };
}

/**
 * Where a service lives is no secret, and stands in its answers; what the environment adds to its path is one: a webhook's token.
 * Of a value that holds the host too, or all of a URL, it is the segments that are as long as tokens are: `/api/v2` is none. As
 * it is written, and as a URL writes it.
 */
function findUrlSecrets(url: string, part: string): string[] {
  const path = /^[a-z]+:\/\/[^/]*(\/.*)$/i.exec(url)?.[1] ?? '';
  const hidden = path.includes(part) ? [part.replace(/\/+$/, '')] : findTokenSegments(part);
  return hidden.flatMap((text) => [text, new URL(text.replace(/^\/*/, '/'), 'http://host').pathname.slice(1)]);
}

function findTokenSegments(part: string): string[] {
  const [, ...segments] = part.replace(/^[a-z]+:\/\//i, '').split('/');
  return segments.filter((segment) => segment.length >= MIN_TOKEN_LENGTH);
}

/** A directory or a file, which stands in what a server says of its work. */
function isFilePath(value: string): boolean {
  return /^(?:[~.]{0,2}\/|[a-z]:\\)/i.test(value);
}

function compileBreaker(breaker: NonNullable<UpstreamDeclaration['breaker']>): Upstream['breaker'] {
  const { threshold, minimum, windowMs, cooldownMs } = UPSTREAM_DEFAULTS.breaker;
  return {
    threshold: breaker.threshold === undefined ? threshold : Number.parseInt(breaker.threshold, 10) / 100,
    minimum: breaker.minimum ?? minimum,
    windowMs: breaker.window === undefined ? windowMs : parseDurationMs(breaker.window),
    cooldownMs: breaker.cooldown === undefined ? cooldownMs : parseDurationMs(breaker.cooldown),
  };
}

/** What a child process needs of our own environment to start; everything else, secrets above all, stays here. */
const INHERITED_ENV_NAMES = ['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'LANG', 'LC_ALL', 'TERM', 'TMPDIR', 'TZ'];

function pickInheritedEnv(env: Env): Record<string, string> {
  return Object.fromEntries(
    INHERITED_ENV_NAMES.flatMap((name) => (env[name] === undefined ? [] : ([[name, env[name]]] as [string, string][]))),
  );
}

function checkAdapterKeys(
  { place }: DeclaredEntry<UpstreamDeclaration>,
  value: UpstreamDeclaration,
  report: Diagnostics,
): void {
  if (value.adapter === 'mcp') {
    if ((value.url === undefined) === (value.command === undefined)) {
      report.addError(place, 'an mcp upstream needs exactly one of url and command');
    }
    if (value.command === undefined && value.env !== undefined)
      report.addError({ ...locateChild(place, 'env'), key: true }, 'env is only for upstreams with a command');
    const wanted = globSchema.safeParse(value.import ?? '*');
    if (!wanted.success)
      report.addError(
        locateChild(place, 'import'),
        `${formatShortValue(value.import)} ${wanted.error.issues[0]?.message ?? 'is not a glob'}`,
      );
    return;
  }
  if (value.url === undefined) report.addError(place, 'an http upstream needs a url');
  for (const key of ['command', 'env', 'expose'] as const) {
    if (value[key] !== undefined)
      report.addError({ ...locateChild(place, key), key: true }, `${key} is only for mcp upstreams`);
  }
}

/** Messages show no part of a resolved URL: it may hold what came from the environment. */
function checkUpstreamUrl(text: string, fault: (message: string) => void): void {
  if (!URL.canParse(text)) {
    fault('the url is not a URL: write https://host/path');
    return;
  }
  const url = new URL(text);
  if (url.protocol !== 'https:' && url.protocol !== 'http:') fault('the url must begin with https:// or http://');
  if (url.username !== '' || url.password !== '') fault('no credentials in a url: put them in headers');
  if (url.search !== '' || url.hash !== '') fault('a url ends with its path: no ? and no #');
}
