import type { FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../../domain/strict-json.ts';
import { parseTraceContext, type TraceContext } from '../../domain/telemetry.ts';
import type { CallerUndo } from '../../flow/sagas/undo.ts';
import { formatZodIssues } from '../../policy/zod-issues.ts';

const DEFAULT_WAIT_S = 30;
const MOST_WAIT_S = 55;

export interface CallHeaders {
  readonly key: string | undefined;
  readonly patienceMs: number;
  readonly dryRun: boolean;
  readonly saga: string | undefined;
  readonly dependsOn: readonly string[] | undefined;
  readonly undo: CallerUndo | undefined;
  readonly trace: TraceContext;
  readonly fence: RunEpoch | undefined;
}

/** The request headers that steer a call. What is there must be right: a header that is misread is a promise broken. */
export function readCallHeaders(request: FastifyRequest): CallHeaders {
  refuseDoubled(request);
  const saga = parseSaga(header(request, 'oncegate-saga'));
  return {
    trace: traceOf(request),
    saga,
    dependsOn: parseDependsOn(header(request, 'oncegate-depends-on'), saga),
    undo: parseUndo(header(request, 'oncegate-undo')),
    fence: parseFence(fenceHeaders(request)),
    key: parseKey(header(request, 'idempotency-key')),
    patienceMs: parsePrefer(header(request, 'prefer')) * 1000,
    dryRun: isDryRun(request),
  };
}

/** Asked before the other headers are read: what is wrong with those, a dry run tells like everything else. */
export function isDryRun(request: FastifyRequest): boolean {
  return parseFlag('Oncegate-Dry-Run', header(request, 'oncegate-dry-run'));
}

const UNTRACED: TraceContext = {};

function traceOf(request: FastifyRequest): TraceContext {
  const { traceparent, baggage } = request.headers;
  return traceparent === undefined && baggage === undefined
    ? UNTRACED
    : parseTraceContext((name) => header(request, name));
}

interface FenceHeaders {
  readonly run: string | undefined;
  readonly epoch: string | undefined;
}

function fenceHeaders(request: FastifyRequest): FenceHeaders {
  return { run: header(request, 'oncegate-run'), epoch: header(request, 'oncegate-epoch') };
}

/** The run in which something is asked for that is no call, if the request names one. */
export function readRunHeaders(request: FastifyRequest): RunEpoch | undefined {
  refuseDoubled(request);
  return parseFence(fenceHeaders(request));
}

/** The run of a request that names it in its path, in the epoch of its header. */
export function readFence(request: FastifyRequest, run: string): RunEpoch {
  refuseDoubled(request);
  const { run: named, epoch } = fenceHeaders(request);
  if (named !== undefined && named !== run) throw malformed('Oncegate-Run is another run than that of the path');
  if (epoch === undefined) throw malformed('Oncegate-Epoch is missing: send the epoch that POST /v1/runs answered');
  return { run, epoch: parseEpoch(epoch) };
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const MOST_DEPENDENCIES = 256;

export function parseSaga(text: string | undefined): string | undefined {
  if (text === undefined || UUID.test(text)) return text;
  throw malformed('Oncegate-Saga must be the id of a saga, as POST /v1/sagas answered it');
}

/** Both or neither: a call that names its run without an epoch could not be told from a forgotten holder's. */
export function parseFence({ run, epoch }: FenceHeaders): RunEpoch | undefined {
  if (run === undefined && epoch === undefined) return undefined;
  if (run === undefined) throw malformed('Oncegate-Epoch is that of a run: send Oncegate-Run too');
  if (!UUID.test(run)) throw malformed('Oncegate-Run must be the id of a run, as POST /v1/runs answered it');
  if (epoch === undefined) throw malformed('Oncegate-Run needs Oncegate-Epoch, as POST /v1/runs answered it');
  return { run, epoch: parseEpoch(epoch) };
}

/** Larger than any epoch will ever be, and still an integer to PostgreSQL. */
const MOST_EPOCH = 2_147_483_647;

function parseEpoch(text: string): number {
  if (!/^\d{1,15}$/.test(text)) throw malformed('Oncegate-Epoch must be a whole number');
  return Math.min(Number(text), MOST_EPOCH);
}

/** `none`, or the txns of steps. Absent: all earlier steps. */
export function parseDependsOn(text: string | undefined, saga: string | undefined): readonly string[] | undefined {
  if (text === undefined) return undefined;
  if (saga === undefined) throw malformed('Oncegate-Depends-On is about the steps of a saga: send Oncegate-Saga too');
  if (text === 'none') return [];
  const txns = [...new Set(text.split(',').map((part) => part.trim()))];
  if (txns.length > MOST_DEPENDENCIES)
    throw malformed(`Oncegate-Depends-On names more than ${MOST_DEPENDENCIES} steps`);
  const bad = txns.find((txn) => !UUID.test(txn));
  if (bad !== undefined)
    throw malformed(
      `Oncegate-Depends-On must be none or the txns of steps; ${JSON.stringify(bad.slice(0, 64))} is none`,
    );
  return txns;
}

const undoSchema = z.strictObject({
  tool: z.string().min(1).max(128),
  args: z.custom<JsonObject>(isJsonObject, 'must be an object').default({}),
});

/** JSON, read as strictly as arguments are: it may run one day. */
export function parseUndo(text: string | undefined): CallerUndo | undefined {
  if (text === undefined) return undefined;
  let value: Json;
  try {
    value = parseStrictJson(Buffer.from(text, 'latin1'));
  } catch (error) {
    if (error instanceof StrictJsonError) throw malformed(`Oncegate-Undo: ${error.message}`);
    throw error;
  }
  const parsed = undoSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const faults = formatZodIssues(value, undoSchema, parsed.error.issues).join('; ');
  throw malformed(`Oncegate-Undo must be {"tool": …, "args": …}: ${faults}`);
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
  if (text === undefined) return DEFAULT_WAIT_S;
  let wait: number | undefined;
  let fallback = DEFAULT_WAIT_S;
  for (const preference of text.split(',')) {
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
  const raw = request.raw.rawHeaders;
  const seen: string[] = [];
  for (let i = 0; i < raw.length; i += 2) {
    const written = raw[i] ?? '';
    if (!OURS.test(written)) continue;
    const name = written.toLowerCase();
    if (seen.includes(name)) throw malformed(`the header ${name} is there twice`);
    seen.push(name);
  }
}

const OURS = /^(?:idempotency-key$|authorization$|oncegate-)/i;

function malformed(detail: string): GatewayError {
  return new GatewayError('malformed', detail);
}
