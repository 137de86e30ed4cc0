import { CALL_STATES } from '../../../domain/calls/call-state.ts';
import type { JsonObject } from '../../../domain/json.ts';
import { span } from '../../count-words.ts';
import { type Column, type Output, paint } from '../../output.ts';
import { LIST_OPTIONS, limitOf, readList } from '../../pages.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { sagaId } from '../sagas/saga-text.ts';
import { member, stateStyle, UUID } from './call-text.ts';

export const callsVerb: Verb = {
  name: 'calls',
  summary: 'the calls the gateway knows, newest first',
  options: {
    state: { value: 'STATE', choices: CALL_STATES, help: 'only those in this state' },
    agent: { value: 'AGENT', help: 'only those of this agent' },
    tool: { value: 'TOOL', help: 'only those of this tool' },
    saga: { value: 'SAGA', help: 'only its steps, and what undid them' },
    run: { value: 'RUN', help: 'only those made in it' },
    since: { value: 'TIME', help: 'not older than 90s, 15m, 24h, 7d or an ISO 8601 time' },
    ...LIST_OPTIONS,
  },
  run: async (invocation) => {
    const { io, out, text, flag } = invocation;
    const limit = limitOf(invocation);
    const query = {
      state: text('state'),
      agent: text('agent'),
      tool: text('tool'),
      saga: sagaOf(text('saga')),
      run: runOf(text('run')),
      since: await sinceOf(text('since')),
    };
    const { items, cursor } = await readList(io, '/admin/calls', query, limit);
    out.json({ items, cursor });
    tell(out, items);
    if (out.terminal && items.length === 0)
      out.line(Object.values(query).some(Boolean) ? 'no such calls' : 'no calls yet');
    if (out.terminal && cursor !== null && !flag('all')) out.note('There are more: --limit N, or --all.');
    return 0;
  },
};

function sagaOf(text: string | undefined): string | undefined {
  return text === undefined ? undefined : sagaId(text);
}

function runOf(text: string | undefined): string | undefined {
  if (text === undefined || UUID.test(text)) return text?.toLowerCase();
  throw new UsageError(`--run ${JSON.stringify(text)} is no run: its id is a UUID, and "oncegate runs" lists them`);
}

async function sinceOf(text: string | undefined): Promise<string | undefined> {
  if (text === undefined) return undefined;
  if (/^\d{1,9}(?:ms|s|m|h|d)$/.test(text)) {
    const { parseDurationMs: milliseconds } = await import('../../../domain/duration.ts');
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
