import { parseDurationMs } from '../../domain/duration.ts';
import type { Upstream } from '../../domain/policy.ts';
import type { DeclaredEntry } from '../declarations.ts';
import { type Diagnostics, locateChild } from '../faults.ts';
import { describeGlobFault, type UpstreamDeclaration } from '../policy-file-schema.ts';
import { type Env, resolveSecrets } from '../resolve-secrets.ts';
import { formatShortValue } from '../zod-issues.ts';

export const UPSTREAM_DEFAULTS = {
  timeoutMs: 10_000,
  concurrency: 32,
  breaker: { threshold: 0.5, minimum: 10, windowMs: 10_000, cooldownMs: 15_000 },
} as const;

/** Headers that frame a message. The adapter writes them; a second one would allow request smuggling. */
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

/** Whether only the gateway writes this header: framing, or an `Oncegate-…` header that identifies a call and its locks. */
export function isReservedHeader(header: string): boolean {
  const lower = header.toLowerCase();
  return FRAMING_HEADERS.has(lower) || lower.startsWith('oncegate-');
}

/** Headers that describe a message. Their values are no credentials, so the adapter does not scrub them from answers. */
const NON_SECRET_HEADERS = new Set(['accept', 'cache-control', 'origin', 'pragma', 'prefer', 'user-agent']);

function isNonSecretHeader(lower: string): boolean {
  return NON_SECRET_HEADERS.has(lower) || /^accept-|^content-(type|language|encoding)$|-version$/.test(lower);
}

/** Shorter values are not scrubbed from answers. */
const MIN_SECRET_LENGTH = 6;
/** A shorter segment of a URL that a variable holds entirely is not a secret. */
const MIN_TOKEN_LENGTH = 16;
const MAX_TIMEOUT_MS = 24 * 3_600_000;

export function compileUpstream(
  declared: DeclaredEntry<UpstreamDeclaration>,
  env: Env,
  diagnostics: Diagnostics,
): Upstream | undefined {
  const { name, location, value } = declared;
  if (value === undefined) return undefined;
  const resolve = (template: string, canReadFiles: boolean, ...path: (string | number)[]) =>
    resolveSecrets(template, env, { file: canReadFiles }, (message, offset) =>
      diagnostics.addError(locateChild(location, ...path), message, offset),
    );

  checkAdapterKeys(declared, value, diagnostics);
  const secrets = new Set<string>();
  const keepSecret = (values: readonly string[]): void => {
    for (const value of values) if (value.length >= MIN_SECRET_LENGTH) secrets.add(value);
  };
  const { text: url, values: urlValues } =
    value.url === undefined ? { text: undefined, values: [] } : resolve(value.url, false, 'url');
  if (url) checkUpstreamUrl(url, (message) => diagnostics.addError(locateChild(location, 'url'), message));
  for (const part of urlValues) keepSecret(findUrlSecrets(url ?? '', part));
  const words = value.command?.map((word, index) => resolve(word, false, 'command', index));
  for (const word of words ?? []) keepSecret(word.values.filter((filled) => !isFilePath(filled)));
  const headers: Record<string, string> = {};
  const ownEnv: Record<string, string> = {};
  for (const [variable, template] of Object.entries(value.env ?? {})) {
    const { text, values } = resolve(template, true, 'env', variable);
    if (text.includes('\0'))
      diagnostics.addError(
        locateChild(location, 'env', variable),
        `The value of ${variable} must not contain a NUL character.`,
      );
    ownEnv[variable] = text;
    keepSecret(values);
  }
  for (const [header, template] of Object.entries(value.headers ?? {})) {
    const addFault = (message: string): void => diagnostics.addError(locateChild(location, 'headers', header), message);
    const { text, values } = resolve(template, true, 'headers', header);
    const lower = header.toLowerCase();
    if (isReservedHeader(lower)) addFault(`The gateway itself writes the header ${header}. Remove it.`);
    if (lower in headers) addFault(`The header ${header} appears twice. Remove one of them.`);
    if (!/^[\t\x20-\x7e\x80-\xff]*$/.test(text))
      addFault(`The value of the header ${header} must not contain line breaks or other control characters.`);
    headers[lower] = text;
    // A header without references is a secret too, unless its name says otherwise.
    keepSecret(values.length > 0 || !isNonSecretHeader(lower) ? [...values, text] : []);
  }
  const timeoutMs = value.timeout === undefined ? UPSTREAM_DEFAULTS.timeoutMs : parseDurationMs(value.timeout);
  if (timeoutMs > MAX_TIMEOUT_MS)
    diagnostics.addError(locateChild(location, 'timeout'), `timeout must be at most 24h (got ${value.timeout}).`);
  return {
    name,
    adapter: value.adapter,
    ...(url !== undefined && { url }),
    ...(words !== undefined && {
      command: words.map(({ text }) => text),
      env: { ...pickInheritedEnv(env), ...ownEnv },
    }),
    headers,
    // The longest first, because scrubbing a part first would leave the rest of a longer secret.
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
 * The secrets that a variable adds to the path of a URL, such as the token of a webhook. The host is no secret and occurs in answers.
 * If the variable holds the host too, only path segments as long as a token are secrets, so `api` and `v2` are not. Each secret is
 * listed as written and as encoded in a URL.
 */
function findUrlSecrets(url: string, part: string): string[] {
  const path = /^[a-z]+:\/\/[^/]*(\/.*)$/i.exec(url)?.[1] ?? '';
  const secrets = path.includes(part) ? [part.replace(/\/+$/, '')] : findTokenSegments(part);
  return secrets.flatMap((text) => [text, new URL(text.replace(/^\/*/, '/'), 'http://host').pathname.slice(1)]);
}

function findTokenSegments(part: string): string[] {
  const [, ...segments] = part.replace(/^[a-z]+:\/\//i, '').split('/');
  return segments.filter((segment) => segment.length >= MIN_TOKEN_LENGTH);
}

/** Whether a value is the path of a file or directory, which is no secret and occurs in answers. */
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

/** The variables that a child process needs to start. It inherits no others, because they may be secrets. */
const INHERITED_ENV_NAMES = ['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'LANG', 'LC_ALL', 'TERM', 'TMPDIR', 'TZ'];

function pickInheritedEnv(env: Env): Record<string, string> {
  return Object.fromEntries(
    INHERITED_ENV_NAMES.flatMap((name) => (env[name] === undefined ? [] : ([[name, env[name]]] as [string, string][]))),
  );
}

function checkAdapterKeys(
  { location }: DeclaredEntry<UpstreamDeclaration>,
  value: UpstreamDeclaration,
  diagnostics: Diagnostics,
): void {
  if (value.adapter === 'mcp') {
    if ((value.url === undefined) === (value.command === undefined)) {
      const got = value.url === undefined ? 'neither' : 'both';
      diagnostics.addError(location, `An mcp upstream must have either url or command (got ${got}).`);
    }
    if (value.command === undefined && value.env !== undefined)
      diagnostics.addError(
        { ...locateChild(location, 'env'), key: true },
        'env is only for upstreams with a command. Remove it.',
      );
    const fault = describeGlobFault(value.import ?? '*');
    if (fault !== undefined)
      diagnostics.addError(locateChild(location, 'import'), `import ${fault} (got ${formatShortValue(value.import)}).`);
    return;
  }
  if (value.url === undefined) diagnostics.addError(location, 'An http upstream must have a url.');
  for (const key of ['command', 'env', 'expose'] as const) {
    if (value[key] !== undefined)
      diagnostics.addError(
        { ...locateChild(location, key), key: true },
        `${key} is only for mcp upstreams. Remove it, or write adapter: mcp.`,
      );
  }
}

/** Messages show no part of a resolved URL, because it may contain secrets of the environment. */
function checkUpstreamUrl(text: string, reportFault: (message: string) => void): void {
  if (!URL.canParse(text)) {
    reportFault('url must be a URL such as https://host/path.');
    return;
  }
  const url = new URL(text);
  if (url.protocol !== 'https:' && url.protocol !== 'http:') reportFault('url must begin with https:// or http://.');
  if (url.username !== '' || url.password !== '')
    reportFault('url must not contain a user name or password. Put credentials in headers.');
  if (url.search !== '' || url.hash !== '')
    reportFault('url must not contain ? or #. Remove everything after its path.');
}
