import type { FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { parseDurationMs } from '../../domain/duration.ts';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../../domain/strict-json.ts';
import { formatZodIssues } from '../../policy/zod-issues.ts';
import { MAX_TTL_S } from '../schemas/fields.ts';

/** Reads the arguments of a call. Strict parsing guarantees that policies judge exactly what the upstream receives. */
export function readArguments(request: FastifyRequest): JsonObject {
  const body = request.body;
  if (!Buffer.isBuffer(body) || body.length === 0) {
    throw new GatewayError('malformed', 'The body is empty. Send the arguments as a JSON object, {} for none.');
  }
  const value = parseStrictBody(body);
  if (!isJsonObject(value))
    throw new GatewayError('malformed', 'The body must be a JSON object: the arguments of the tool.');
  return value;
}

/** Longer bodies are not kept while their caller waits; a replay parses them again. */
const MAX_KEPT_BODY_BYTES = 64 * 1024;

/** The body, one character per byte, to compare two bodies byte by byte. Undefined for bodies above the limit. */
export function rawBodyText({ body }: FastifyRequest): string | undefined {
  return Buffer.isBuffer(body) && body.length <= MAX_KEPT_BODY_BYTES ? body.toString('latin1') : undefined;
}

/** Reads any JSON value as strictly as arguments. `subject` names the value in the error. */
export function readJson(request: FastifyRequest, subject: string): Json {
  const { body } = request;
  if (Buffer.isBuffer(body) && body.length > 0) return parseStrictBody(body);
  throw new GatewayError('malformed', `The body is empty. Send ${subject} as JSON.`);
}

/** Checks the body against its schema and reports every fault. An empty body counts as `{}`. */
export function readBody<T>(request: FastifyRequest, schema: z.ZodType<T>): T {
  const value = Buffer.isBuffer(request.body) && request.body.length > 0 ? parseStrictBody(request.body) : {};
  if (!isJsonObject(value)) throw new GatewayError('malformed', 'The body must be a JSON object.');
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const faults = formatZodIssues(value, schema, parsed.error.issues);
  throw new GatewayError('malformed', faults.join(' '), { members: { faults } });
}

function parseStrictBody(body: Buffer) {
  try {
    return parseStrictJson(body);
  } catch (error) {
    if (error instanceof StrictJsonError) throw new GatewayError('malformed', error.message);
    throw error;
  }
}

/** A `ttl` in milliseconds. The schema limits seconds but cannot limit durations such as 400d. */
export function parseTtl(ttl: string | number | null | undefined): number | undefined {
  if (ttl == null) return undefined;
  const ms = typeof ttl === 'number' ? ttl * 1000 : parseDurationMs(ttl);
  if (ms <= MAX_TTL_S * 1000) return ms;
  throw new GatewayError('malformed', 'ttl must be at most 366 days.');
}
