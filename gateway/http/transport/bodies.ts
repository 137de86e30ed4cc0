import type { FastifyRequest } from 'fastify';
import type { z } from 'zod';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../../domain/strict-json.ts';
import { formatZodIssues } from '../../policy/zod-issues.ts';

/** The arguments of a call: a JSON object, read so that what is judged is exactly what is sent. */
export function readArguments(request: FastifyRequest): JsonObject {
  const body = request.body;
  if (!Buffer.isBuffer(body) || body.length === 0) {
    throw new GatewayError('malformed', 'The body is empty; send the arguments as a JSON object, {} for none.');
  }
  const value = strict(body);
  if (!isJsonObject(value))
    throw new GatewayError('malformed', 'The body must be a JSON object: the arguments of the tool.');
  return value;
}

/** Longer bodies are read again rather than kept for as long as their caller waits. */
const LONG_BYTES = 64 * 1024;

/** The body of a call, a character a byte: two are the same if their bytes are. Undefined where it is long. */
export function asItCame({ body }: FastifyRequest): string | undefined {
  return Buffer.isBuffer(body) && body.length <= LONG_BYTES ? body.toString('latin1') : undefined;
}

/** Any JSON, read as strictly as arguments are. */
export function readJson(request: FastifyRequest, what: string): Json {
  const { body } = request;
  if (Buffer.isBuffer(body) && body.length > 0) return strict(body);
  throw new GatewayError('malformed', `The body is empty; send ${what} as JSON.`);
}

/** The body of an admin action, against its schema; every fault is told. */
export function readBody<T>(request: FastifyRequest, schema: z.ZodType<T>): T {
  const value = Buffer.isBuffer(request.body) && request.body.length > 0 ? strict(request.body) : {};
  if (!isJsonObject(value)) throw new GatewayError('malformed', 'The body must be a JSON object.');
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const faults = formatZodIssues(value, schema, parsed.error.issues);
  throw new GatewayError('malformed', faults.join(' '), { members: { faults } });
}

function strict(body: Buffer) {
  try {
    return parseStrictJson(body);
  } catch (error) {
    if (error instanceof StrictJsonError) throw new GatewayError('malformed', error.message);
    throw error;
  }
}
