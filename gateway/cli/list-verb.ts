import type { JsonObject } from '../domain/json.ts';
import { textField } from './json-fields.ts';
import type { Output, StyledText, TableColumn } from './output.ts';
import { formatDuration } from './quantities.ts';
import { type ListQuery, readList } from './read-list.ts';
import { type Invocation, type Option, UsageError, type Verb } from './verb.ts';

const DEFAULT_LIMIT = 50;

const PAGING_OPTIONS: Readonly<Record<string, Option>> = {
  limit: { value: 'N', help: `at most N of them (default ${DEFAULT_LIMIT})` },
  all: { help: 'all of them' },
};

export interface ListSpec {
  readonly name: string;
  readonly summary: string;
  /** The list in the admin API. */
  readonly path: string;
  /** The filters of the verb. `--limit` and `--all` are added, unless `isPaged` is false. */
  readonly filters?: Readonly<Record<string, Option>>;
  readonly buildQuery?: (invocation: Invocation) => ListQuery | Promise<ListQuery>;
  /** False for a short list, which is always read to its end. */
  readonly isPaged?: boolean;
  readonly columns: readonly ListColumn[] | ((view: ListView) => readonly ListColumn[]);
  /** Printed on a terminal when the list is empty and no filter was given. */
  readonly emptyMessage: string;
  /** What to do next; printed on a terminal below a list that is not empty. */
  readonly buildHint?: (query: ListQuery) => string | undefined;
}

export interface ListColumn extends TableColumn {
  readonly cell: (item: JsonObject, view: ListView) => StyledText;
}

export interface ListView {
  readonly out: Output;
  readonly query: ListQuery;
  readonly now: number;
}

/** A verb that prints a list of the admin API: as a table on a terminal, else as rows, or as JSON with `--json`. */
export function listVerb(spec: ListSpec): Verb {
  const { name, summary, path, filters = {}, isPaged = true, emptyMessage } = spec;
  return {
    name,
    summary,
    ...(isPaged ? { options: { ...filters, ...PAGING_OPTIONS } } : {}),
    run: async (invocation) => {
      const { io, out } = invocation;
      const limit = isPaged ? readLimit(invocation) : Number.POSITIVE_INFINITY;
      const query = (await spec.buildQuery?.(invocation)) ?? {};
      const { items, cursor } = await readList(io, path, query, limit);
      out.printJson({ items, cursor });
      printItems(spec, items, { out, query, now: Date.now() });
      if (!out.isTerminal) return 0;
      if (items.length === 0)
        out.printLine(hasFilter(invocation, filters) ? `No ${name} match these options.` : emptyMessage);
      if (cursor !== null) out.printNote('There are more: add --limit N or --all.');
      const hint = items.length === 0 ? undefined : spec.buildHint?.(query);
      if (hint !== undefined) out.printNote(hint);
      return 0;
    },
  };
}

/** A column that shows one field as it is. */
export function fieldColumn(name: string, options: { canTruncate?: boolean; title?: string } = {}): ListColumn {
  return {
    title: options.title ?? name,
    ...(options.canTruncate === true ? { canTruncate: true } : {}),
    cell: (item) => textField(item, name),
  };
}

/** A column that shows a time: its age on a terminal, the time itself elsewhere. */
export function ageColumn(title: string, name: string): ListColumn {
  return {
    title,
    cell: (item, { out, now }) => {
      const time = textField(item, name);
      return out.isTerminal ? formatDuration(now - Date.parse(time)) : time;
    },
  };
}

function printItems({ columns: spec }: ListSpec, items: readonly JsonObject[], view: ListView): void {
  if (items.length === 0) return;
  const columns = typeof spec === 'function' ? spec(view) : spec;
  view.out.printTable(
    columns,
    items.map((item) => columns.map(({ cell }) => cell(item, view))),
  );
}

function hasFilter({ text, hasFlag }: Invocation, filters: Readonly<Record<string, Option>>): boolean {
  return Object.keys(filters).some((name) => text(name) !== undefined || hasFlag(name));
}

function readLimit({ text, hasFlag }: Invocation): number {
  const limit = text('limit');
  if (limit !== undefined && hasFlag('all')) throw new UsageError('--limit and --all exclude each other');
  if (hasFlag('all')) return Number.POSITIVE_INFINITY;
  if (limit === undefined) return DEFAULT_LIMIT;
  if (!/^[1-9]\d{0,6}$/.test(limit))
    throw new UsageError(`--limit must be a number from 1 to 9999999 (got ${JSON.stringify(limit)})`);
  return Number(limit);
}
