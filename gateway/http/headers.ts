import type { FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';

const DEFAULT_WAIT_S = 30;
const MOST_WAIT_S = 55;

export interface CallHeaders {
  readonly key: string | undefined;
  readonly patienceMs: number;
  readonly dryRun: boolean;
}

/** The request headers that steer a call. What is there must be right: a header that is misread is a promise broken. */
export function readCallHeaders(request: FastifyRequest): CallHeaders {
  refuseDoubled(request);
  for (const name of ['oncegate-saga', 'oncegate-depends-on', 'oncegate-run', 'oncegate-epoch', 'oncegate-undo']) {
    if (request.headers[name] !== undefined) throw malformed(`${name} is not supported by this version; leave it out`);
  }
  return {
    key: parseKey(header(request, 'idempotency-key')),
    patienceMs: parsePrefer(header(request, 'prefer')) * 1000,
    dryRun: parseFlag('Oncegate-Dry-Run', header(request, 'oncegate-dry-run')),
  };
}

/** 1 to 255 visible ASCII characters, bare or as a quoted string. */
export function parseKey(text: string | undefined): string | undefined {
  if (text === undefined) return undefined;
  let key = text;
  if (text.startsWith('"')) {
    const [, quoted] = /^"((?:[^"\\]|\\["\\])*)"$/.exec(text) ?? [];
    if (quoted === undefined) throw malformed('Idempotency-Key starts with a quote but is no quoted string');
    key = quoted.replaceAll(/\\(["\\])/g, '$1');
  }
  if (!/^[\x21-\x7e]{1,255}$/.test(key)) {
    throw malformed('Idempotency-Key must be 1 to 255 visible ASCII characters without spaces');
  }
  return key;
}

/**
 * Seconds to wait. As RFC 7240 asks, preferences that are not ours are ignored, of two equal ones the first counts, and
 * `respond-async, wait=10`, in either order, means: wait that long, then answer 202.
 */
export function parsePrefer(text: string | undefined): number {
  let wait: number | undefined;
  let fallback = DEFAULT_WAIT_S;
  for (const preference of text?.split(',') ?? []) {
    const [name, value] = preference.split(';')[0]?.split('=') ?? [];
    if (name?.trim().toLowerCase() === 'respond-async') fallback = 0;
    if (name?.trim().toLowerCase() === 'wait')
      wait ??= parseWait('Prefer: wait', value?.trim().replace(/^"(.*)"$/, '$1') ?? '');
  }
  return wait ?? fallback;
}

export function parseWait(where: string, text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw malformed(`${where} must be a whole number of seconds`);
  return Math.min(Number(text), MOST_WAIT_S);
}

function parseFlag(name: string, text: string | undefined): boolean {
  if (text === undefined || text === '?0') return false;
  if (text === '?1') return true;
  throw malformed(`${name} must be ?1 or ?0`);
}

function header(request: FastifyRequest, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value.join(', ') : value;
}

/** Node joins or drops repeated headers; of ours there may be one each. */
function refuseDoubled(request: FastifyRequest): void {
  const seen = new Set<string>();
  const raw = request.raw.rawHeaders;
  for (let i = 0; i < raw.length; i += 2) {
    const name = raw[i]?.toLowerCase() ?? '';
    if (name !== 'idempotency-key' && name !== 'authorization' && !name.startsWith('oncegate-')) continue;
    if (seen.has(name)) throw malformed(`the header ${name} is there twice`);
    seen.add(name);
  }
}

function malformed(detail: string): GatewayError {
  return new GatewayError('malformed', detail);
}
