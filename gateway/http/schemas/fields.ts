import { z } from 'zod';
import { DURATION_PATTERN, INVALID_DURATION } from '../../domain/duration.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';

// Fields that several requests and answers share.

export const text = z.string();
export const count = z.int().min(0);
export const uuid = z.uuid();
export const time = z.iso.datetime();
export const anyJson = z.custom<Json>((value) => value !== undefined);
export const jsonObject = z.custom<JsonObject>(isJsonObject, 'must be an object').meta({ type: 'object' });

/** The name of a run, saga or savepoint. PostgreSQL cannot store NUL in a text. */
export const shortName = z
  .string()
  .trim()
  .min(1)
  .max(128)
  .refine((value) => !value.includes('\0'), 'must not contain a NUL character');

/** The reason of a person, required by every action. */
export const reason = z
  .string()
  .trim()
  .min(1)
  .max(2_000)
  .refine((value) => !value.includes('\0'), 'must not contain a NUL character');

export const reasonBody = z.strictObject({ reason });
export const emptyBody = z.strictObject({});

/** A year. No saga and no run is expected to stay open longer. */
export const MAX_TTL_S = 366 * 24 * 3600;

export const ttl = z.union(
  [z.string().regex(DURATION_PATTERN, INVALID_DURATION), z.int().min(1).max(MAX_TTL_S)],
  'must be a duration such as 30s, 5m, 24h, or whole seconds',
);

/** The digest of `subject`, which names it in the error. */
export function digestOf(subject: string) {
  return z.string().regex(/^[0-9a-f]{64}$/, `must be the digest of ${subject}: 64 hex digits`);
}

/** A page of a list. The next page starts at its cursor. */
export function pageOf<T extends z.ZodType>(item: T) {
  return z.object({ items: z.array(item), cursor: text.nullable() });
}

/** Of a run or saga. */
export const taint = z
  .object({
    txn: uuid.nullable().describe('Null for a resource or prompt, which is not a call.'),
    tool: text,
    since: time,
  })
  .nullable()
  .describe('The first call that read what strangers wrote; null while it is clean.');

export type TaintView = z.infer<typeof taint>;
