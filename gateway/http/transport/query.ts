import type { FastifyRequest } from 'fastify';
import { CALL_STATES } from '../../domain/calls/call-state.ts';
import { GatewayError } from '../../domain/errors.ts';
import { buildCursorAt, type CallFilter } from '../../flow/calls/own-calls.ts';
import { parseWait } from './headers.ts';

export type Query = Readonly<Record<string, string | string[] | undefined>>;

export const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const MAX_ITEMS = 200;

/** The filter of a list of calls. */
export function readFilter(query: Query): CallFilter {
  const until = readTime(query, 'until');
  return {
    tool: readParam(query, 'tool'),
    saga: readId(query, 'saga'),
    run: readId(query, 'run'),
    state: readChoice(query, 'state', CALL_STATES),
    since: readTime(query, 'since'),
    // Later pages need no `until`: their cursor is older. The first page starts at the cursor for `until`.
    cursor: readParam(query, 'cursor') ?? (until === undefined ? undefined : buildCursorAt(until)),
    limit: readLimit(query),
  };
}

function readTime(query: Query, name: 'since' | 'until'): Date | undefined {
  const text = readParam(query, name);
  if (text === undefined) return undefined;
  const time = new Date(text);
  const isInRange = time.getTime() >= 0 && time.getUTCFullYear() < 2286;
  if (isInRange || (name === 'since' && !Number.isNaN(time.getTime()))) return time;
  throw new GatewayError('malformed', `${name} must be a time such as 2026-01-31T12:00:00Z.`);
}

export function readLimit(query: Query): number {
  const limit = readParam(query, 'limit') ?? '50';
  if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1)
    throw new GatewayError('malformed', 'limit must be a whole number, at least 1.');
  return Math.min(Number(limit), MAX_ITEMS);
}

export function readId(query: Query, name: 'saga' | 'run' | 'holder'): string | undefined {
  const id = readParam(query, name);
  if (id === undefined || UUID.test(id)) return id;
  throw new GatewayError('malformed', `${name} must be an id that this API returned.`);
}

export function readChoice<T extends string>(query: Query, name: string, choices: readonly T[]): T | undefined {
  const value = readParam(query, name);
  const choice = choices.find((each) => each === value);
  if (value === undefined || choice !== undefined) return choice;
  throw new GatewayError('malformed', `${name} must be one of ${choices.join(', ')}.`);
}

export function readParam(query: Query, name: string): string | undefined {
  const value = query[name];
  if (Array.isArray(value)) throw new GatewayError('malformed', `${name} appears more than once.`);
  if (value?.includes('\0') === true) throw new GatewayError('malformed', `${name} must not contain a NUL character.`);
  return value;
}

export function readIdParam(request: FastifyRequest): string {
  return (request.params as { id: string }).id;
}

/** How long to wait for the end. Without `wait` the answer is immediate, and the work continues in the background. */
export function readPatience(request: FastifyRequest): number {
  const wait = readParam(request.query as Query, 'wait');
  return wait === undefined ? 0 : parseWait('wait', wait) * 1000;
}
