import type { JsonObject } from '../domain/json.ts';
import { askGateway } from './ask-gateway.ts';
import { type Invocation, type Io, NotGood, type Option, UsageError } from './verb.ts';

const DEFAULT_LIMIT = 50;
const PAGE = 100;

/** What every verb that lists takes. */
export const LIST_OPTIONS: Readonly<Record<string, Option>> = {
  limit: { value: 'N', help: `at most so many (default ${DEFAULT_LIMIT})` },
  all: { help: 'every one' },
};

export interface Listed {
  readonly items: readonly JsonObject[];
  /** Where the next one would be; null: there is none. */
  readonly cursor: string | null;
}

type Query = Readonly<Record<string, string | undefined>>;

/** Reads a list of the admin API, newest first, as far as somebody wants to read. */
export async function readList(io: Io, path: string, query: Query, limit: number): Promise<Listed> {
  const items: JsonObject[] = [];
  let cursor: string | undefined;
  do {
    const page = String(Math.min(PAGE, limit - items.length));
    const next = pageOf(await askGateway(io, path, { query: { ...query, cursor, limit: page } }), path);
    // A gateway that gives the same place again would be asked for ever.
    cursor = next.cursor === cursor ? undefined : next.cursor;
    items.push(...next.items);
  } while (cursor !== undefined && items.length < limit);
  return { items: limit < items.length ? items.slice(0, limit) : items, cursor: cursor ?? null };
}

/** How many of a list were asked for. */
export function limitOf({ text, flag }: Invocation): number {
  const limit = text('limit');
  if (limit !== undefined && flag('all')) throw new UsageError('--limit and --all exclude one another');
  if (flag('all')) return Number.POSITIVE_INFINITY;
  if (limit === undefined) return DEFAULT_LIMIT;
  if (!/^[1-9]\d{0,6}$/.test(limit)) throw new UsageError(`--limit ${JSON.stringify(limit)} is not a number from 1 on`);
  return Number(limit);
}

function pageOf(
  { items, cursor }: JsonObject,
  path: string,
): { items: readonly JsonObject[]; cursor: string | undefined } {
  if (!Array.isArray(items)) {
    const what = path.slice(path.lastIndexOf('/') + 1);
    throw new NotGood('not_a_gateway', `what answers at ONCEGATE_URL gives no list of ${what}`);
  }
  return { items: items as readonly JsonObject[], cursor: typeof cursor === 'string' ? cursor : undefined };
}
