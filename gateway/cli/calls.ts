import type { JsonObject } from '../domain/json.ts';
import { STATES } from '../domain/states.ts';
import { askGateway } from './ask-gateway.ts';
import { member, stateStyle } from './call-text.ts';
import { type Column, type Output, paint } from './output.ts';
import { type Invocation, NotGood, UsageError, type Verb } from './verb.ts';
import { span } from './words.ts';

const DEFAULT_LIMIT = 50;
const PAGE = 100;

export const calls: Verb = {
  name: 'calls',
  summary: 'the calls the gateway knows, newest first',
  options: {
    state: { value: 'STATE', choices: STATES, help: 'only those in this state' },
    agent: { value: 'AGENT', help: 'only those of this agent' },
    tool: { value: 'TOOL', help: 'only those of this tool' },
    since: { value: 'TIME', help: 'not older than 90s, 15m, 24h, 7d or an ISO 8601 time' },
    limit: { value: 'N', help: `at most so many (default ${DEFAULT_LIMIT})` },
    all: { help: 'every one' },
  },
  run: async (invocation) => {
    const { io, out, text, flag } = invocation;
    const limit = limitOf(invocation);
    const query = {
      state: text('state'),
      agent: text('agent'),
      tool: text('tool'),
      since: await sinceOf(text('since')),
    };
    const items: JsonObject[] = [];
    let cursor: string | undefined;
    do {
      const page = String(Math.min(PAGE, limit - items.length));
      const answer = await askGateway(io, '/admin/calls', { query: { ...query, cursor, limit: page } });
      const next = pageOf(answer);
      // A gateway that gives the same place again would be asked for ever.
      cursor = next.cursor === cursor ? undefined : next.cursor;
      items.push(...next.items);
    } while (cursor !== undefined && items.length < limit);

    out.json({ items, cursor: cursor ?? null });
    tell(out, items);
    if (out.terminal && items.length === 0)
      out.line(Object.values(query).some(Boolean) ? 'no such calls' : 'no calls yet');
    if (out.terminal && cursor !== undefined && !flag('all')) out.note('There are more: --limit N, or --all.');
    return 0;
  },
};

function limitOf({ text, flag }: Invocation): number {
  const limit = text('limit');
  if (limit !== undefined && flag('all')) throw new UsageError('--limit and --all exclude one another');
  if (flag('all')) return Number.POSITIVE_INFINITY;
  if (limit === undefined) return DEFAULT_LIMIT;
  if (!/^[1-9]\d{0,6}$/.test(limit)) throw new UsageError(`--limit ${JSON.stringify(limit)} is not a number from 1 on`);
  return Number(limit);
}

async function sinceOf(text: string | undefined): Promise<string | undefined> {
  if (text === undefined) return undefined;
  if (/^\d{1,9}(?:ms|s|m|h|d)$/.test(text)) {
    const { milliseconds } = await import('../policy/schema.ts');
    return isoOf(Date.now() - milliseconds(text), text);
  }
  // Date.parse alone would take "1" for the year 2001.
  if (!/^\d{4}-\d\d-\d\d/.test(text)) throw badSince(text);
  return isoOf(Date.parse(text), text);
}

function isoOf(time: number, text: string): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) throw badSince(text);
  return date.toISOString();
}

function badSince(text: string): UsageError {
  return new UsageError(
    `--since ${JSON.stringify(text)} is neither an age such as 24h nor a time such as 2026-01-31T08:00Z`,
  );
}

function pageOf({ items, cursor }: JsonObject): { items: readonly JsonObject[]; cursor: string | undefined } {
  if (!Array.isArray(items)) throw new NotGood('not_a_gateway', 'what answers at ONCEGATE_URL gives no list of calls');
  return { items: items as readonly JsonObject[], cursor: typeof cursor === 'string' ? cursor : undefined };
}

const COLUMNS: readonly Column[] = [
  { title: 'txn' },
  { title: 'state' },
  { title: 'agent', cut: true },
  { title: 'tool', cut: true },
  { title: 'age' },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  const now = Date.now();
  out.table(
    COLUMNS,
    items.map((call) => {
      const created = member(call, 'createdAt');
      const when = out.terminal ? span(now - Date.parse(created)) : created;
      const state = member(call, 'state');
      return [member(call, 'txn'), paint(stateStyle(state), state), member(call, 'agent'), member(call, 'tool'), when];
    }),
  );
}
