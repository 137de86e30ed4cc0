import type { JsonObject } from '../domain/json.ts';
import { requestGateway } from './gateway-client.ts';
import { type Io, VerbError } from './verb.ts';

const PAGE_SIZE = 100;

export interface ItemList {
  readonly items: readonly JsonObject[];
  /** Where the rest of the list begins; null at its end. */
  readonly cursor: string | null;
}

export type ListQuery = Readonly<Record<string, string | undefined>>;

/** Reads up to `limit` items of a list of the admin API, newest first, page by page. */
export async function readList(
  io: Io,
  path: string,
  query: ListQuery = {},
  limit = Number.POSITIVE_INFINITY,
): Promise<ItemList> {
  const items: JsonObject[] = [];
  let cursor: string | undefined;
  do {
    const pageSize = String(Math.min(PAGE_SIZE, limit - items.length));
    const answer = await requestGateway(io, path, { query: { ...query, cursor, limit: pageSize } });
    const page = parsePage(answer, path);
    // A server that returns the same cursor again would never end this loop.
    cursor = page.cursor === cursor ? undefined : page.cursor;
    items.push(...page.items);
  } while (cursor !== undefined && items.length < limit);
  return { items: limit < items.length ? items.slice(0, limit) : items, cursor: cursor ?? null };
}

function parsePage(
  { items, cursor }: JsonObject,
  path: string,
): { items: readonly JsonObject[]; cursor: string | undefined } {
  if (!Array.isArray(items)) {
    const what = path.slice(path.lastIndexOf('/') + 1);
    throw new VerbError('not_a_gateway', `The server at ONCEGATE_URL returned no list of ${what}. Check ONCEGATE_URL.`);
  }
  return { items: items as readonly JsonObject[], cursor: typeof cursor === 'string' ? cursor : undefined };
}
