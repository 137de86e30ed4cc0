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
const MAX_WAIT_S = 55;

export interface CallHeaders {
  readonly key: string | undefined;
  readonly patienceMs: number;
  readonly dryRun: boolean;
  readonly saga: string | undefined;
  readonly dependsOn: readonly string[] | undefined;
  readonly undo: CallerUndo | undefined;
  readonly trace: TraceContext;
  readonly runEpoch: RunEpoch | undefined;
}

/** Reads the request headers of a call. A header that is present must be valid: ignoring a faulty one would break its promise. */
export function readCallHeaders(request: FastifyRequest): CallHeaders {
  refuseDuplicateHeaders(request);
  const saga = parseSaga(header(request, 'oncegate-saga'));
  return {
    trace: readTrace(request),
    saga,
    dependsOn: parseDependsOn(header(request, 'oncegate-depends-on'), saga),
    undo: parseUndo(header(request, 'oncegate-undo')),
    runEpoch: parseRunEpoch(readRunHeaders(request)),
    key: readKeyHeader(request),
    patienceMs: parsePrefer(header(request, 'prefer')) * 1000,
    dryRun: isDryRun(request),
  };
}

/** Read before the other headers, because a dry run answers their faults as part of its report. */
export function isDryRun(request: FastifyRequest): boolean {
  return parseFlag('Oncegate-Dry-Run', header(request, 'oncegate-dry-run'));
}

const NO_TRACE: TraceContext = {};

function readTrace(request: FastifyRequest): TraceContext {
  const { traceparent, baggage } = request.headers;
  return traceparent === undefined && baggage === undefined
    ? NO_TRACE
    : parseTraceContext((name) => header(request, name));
}

interface RunHeaders {
  readonly run: string | undefined;
  readonly epoch: string | undefined;
}

function readRunHeaders(request: FastifyRequest): RunHeaders {
  return { run: header(request, 'oncegate-run'), epoch: header(request, 'oncegate-epoch') };
}

/** The run and epoch of a request that is not a call, if the request names them. */
export function readRunEpoch(request: FastifyRequest): RunEpoch | undefined {
  refuseDuplicateHeaders(request);
  return parseRunEpoch(readRunHeaders(request));
}

/** The run in the path with the epoch in the header. */
export function readPathRunEpoch(request: FastifyRequest, run: string): RunEpoch {
  refuseDuplicateHeaders(request);
  const { run: named, epoch } = readRunHeaders(request);
  if (named !== undefined && named !== run) throw malformed('Oncegate-Run differs from the run in the path');
  if (epoch === undefined) throw malformed('Oncegate-Epoch is missing: send the epoch that POST /v1/runs returned');
  return { run, epoch: parseEpoch(epoch) };
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const MAX_DEPENDENCIES = 256;

export function parseSaga(text: string | undefined): string | undefined {
  if (text === undefined || UUID.test(text)) return text;
  throw malformed('Oncegate-Saga must be the id of a saga, as POST /v1/sagas returns it');
}

/** Requires both or neither. Without an epoch, a call of a replaced holder would look like a call of the current one. */
export function parseRunEpoch({ run, epoch }: RunHeaders): RunEpoch | undefined {
  if (run === undefined && epoch === undefined) return undefined;
  if (run === undefined) throw malformed('Oncegate-Epoch needs Oncegate-Run: send both or neither');
  if (!UUID.test(run)) throw malformed('Oncegate-Run must be the id of a run, as POST /v1/runs returns it');
  if (epoch === undefined) throw malformed('Oncegate-Run needs Oncegate-Epoch: send both or neither');
  return { run, epoch: parseEpoch(epoch) };
}

/** The largest `integer` of PostgreSQL. No epoch grows this large. */
const MAX_EPOCH = 2_147_483_647;

function parseEpoch(text: string): number {
  if (!/^\d{1,15}$/.test(text)) throw malformed('Oncegate-Epoch must be a whole number');
  return Math.min(Number(text), MAX_EPOCH);
}

/** `none`, or a comma-separated list of txns. An absent header means all earlier steps. */
export function parseDependsOn(text: string | undefined, saga: string | undefined): readonly string[] | undefined {
  if (text === undefined) return undefined;
  if (saga === undefined)
    throw malformed('Oncegate-Depends-On needs Oncegate-Saga: only the steps of a saga have dependencies');
  if (text === 'none') return [];
  const txns = [...new Set(text.split(',').map((part) => part.trim()))];
  if (txns.length > MAX_DEPENDENCIES)
    throw malformed(`Oncegate-Depends-On must name at most ${MAX_DEPENDENCIES} steps (got ${txns.length})`);
  const bad = txns.find((txn) => !UUID.test(txn));
  if (bad !== undefined)
    throw malformed(
      `Oncegate-Depends-On must be none or a list of txns; ${JSON.stringify(bad.slice(0, 64))} is not a txn`,
    );
  return txns;
}

const undoSchema = z.strictObject({
  tool: z.string().min(1).max(128),
  args: z.custom<JsonObject>(isJsonObject, 'must be an object').default({}),
});

/** Reads JSON as strictly as arguments, because the undo may run later as a call. */
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
  const faults = formatZodIssues(value, undoSchema, parsed.error.issues).join(' ');
  throw malformed(`Oncegate-Undo must be {"tool": …, "args": …}: ${faults}`);
}

export function readKeyHeader(request: FastifyRequest): string | undefined {
  return parseKey(header(request, 'idempotency-key'));
}

/** 1 to 255 visible ASCII characters, bare or as a quoted string. */
export function parseKey(text: string | undefined): string | undefined {
  if (text === undefined) return undefined;
  let key = text;
  if (text.startsWith('"')) {
    const [, quoted] = /^"((?:[^"\\]|\\["\\])*)"$/.exec(text) ?? [];
    if (quoted === undefined) throw malformed('Idempotency-Key starts with a quote but is not a quoted string');
    key = quoted.replaceAll(/\\(["\\])/g, '$1');
  }
  if (!/^[\x21-\x7e]{1,255}$/.test(key)) {
    throw malformed('Idempotency-Key must be 1 to 255 visible ASCII characters without spaces');
  }
  return key;
}

/**
 * Returns the seconds to wait. RFC 7240: unknown preferences are ignored, and the first of two equal ones counts.
 * `respond-async, wait=10`, in either order, waits up to 10 s and then answers 202.
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

export function parseWait(name: string, text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw malformed(`${name} must be a whole number of seconds`);
  return Math.min(Number(text), MAX_WAIT_S);
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

/** Refuses a repeated header of ours. Node would join or drop the repetition without an error. */
function refuseDuplicateHeaders(request: FastifyRequest): void {
  const raw = request.raw.rawHeaders;
  const seen: string[] = [];
  for (let i = 0; i < raw.length; i += 2) {
    const rawName = raw[i] ?? '';
    if (!SINGLE_HEADERS.test(rawName)) continue;
    const name = rawName.toLowerCase();
    if (seen.includes(name)) throw malformed(`The header ${name} appears more than once`);
    seen.push(name);
  }
}

const SINGLE_HEADERS = /^(?:idempotency-key$|authorization$|oncegate-)/i;

function malformed(detail: string): GatewayError {
  return new GatewayError('malformed', detail.endsWith('.') ? detail : `${detail}.`);
}
