import { CALL_STATES } from '../../../domain/calls/call-state.ts';
import { textField } from '../../json-fields.ts';
import { ageColumn, fieldColumn, listVerb } from '../../list-verb.ts';
import { paint } from '../../output.ts';
import { UsageError } from '../../verb.ts';
import { parseSagaId } from '../sagas/saga-text.ts';
import { callStateStyle, UUID_PATTERN } from './call-text.ts';

export const callsVerb = listVerb({
  name: 'calls',
  summary: 'list calls, newest first',
  path: '/admin/calls',
  filters: {
    state: { value: 'STATE', choices: CALL_STATES, help: 'only calls in this state' },
    agent: { value: 'AGENT', help: 'only calls of this agent' },
    tool: { value: 'TOOL', help: 'only calls of this tool' },
    saga: { value: 'SAGA', help: 'only the steps of this saga, and their compensations' },
    run: { value: 'RUN', help: 'only calls made in this run' },
    since: { value: 'TIME', help: 'only calls newer than 90s, 15m, 24h, 7d or an ISO 8601 time' },
  },
  buildQuery: async ({ text }) => ({
    state: text('state'),
    agent: text('agent'),
    tool: text('tool'),
    saga: parseSagaOption(text('saga')),
    run: parseRunOption(text('run')),
    since: await parseSinceOption(text('since')),
  }),
  columns: [
    fieldColumn('txn'),
    {
      title: 'state',
      cell: (call) => {
        const state = textField(call, 'state');
        return paint(callStateStyle(state), state);
      },
    },
    fieldColumn('agent', { canTruncate: true }),
    fieldColumn('tool', { canTruncate: true }),
    ageColumn('age', 'createdAt'),
  ],
  emptyMessage: 'No calls yet.',
});

function parseSagaOption(text: string | undefined): string | undefined {
  return text === undefined ? undefined : parseSagaId(text);
}

function parseRunOption(text: string | undefined): string | undefined {
  if (text === undefined || UUID_PATTERN.test(text)) return text?.toLowerCase();
  throw new UsageError(`--run must be the UUID of a run (got ${JSON.stringify(text)}); "oncegate runs" lists them`);
}

async function parseSinceOption(text: string | undefined): Promise<string | undefined> {
  if (text === undefined) return undefined;
  if (/^\d{1,9}(?:ms|s|m|h|d)$/.test(text)) {
    const { parseDurationMs } = await import('../../../domain/duration.ts');
    return toIsoTime(Date.now() - parseDurationMs(text), text);
  }
  // Date.parse alone would read "1" as the year 2001.
  if (!/^\d{4}-\d\d-\d\d/.test(text)) throw buildSinceError(text);
  return toIsoTime(Date.parse(text), text);
}

function toIsoTime(time: number, text: string): string {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) throw buildSinceError(text);
  return date.toISOString();
}

function buildSinceError(text: string): UsageError {
  return new UsageError(
    `--since must be an age such as 24h or a time such as 2026-01-31T08:00Z (got ${JSON.stringify(text)})`,
  );
}
