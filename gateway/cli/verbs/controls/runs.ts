import type { JsonObject } from '../../../domain/json.ts';
import { ageColumn, fieldColumn, listVerb } from '../../list-verb.ts';
import { paint, type StyledText } from '../../output.ts';

export const runsVerb = listVerb({
  name: 'runs',
  summary: "list the agents' runs, newest first",
  path: '/admin/runs',
  filters: {
    agent: { value: 'AGENT', help: 'only runs of this agent' },
    abandoned: { help: 'only runs that were silent for longer than their ttl' },
  },
  buildQuery: ({ text, hasFlag }) => ({
    agent: text('agent'),
    abandoned: hasFlag('abandoned') ? 'true' : undefined,
  }),
  columns: [
    fieldColumn('run'),
    { title: 'state', cell: formatRunState },
    fieldColumn('agent', { canTruncate: true }),
    fieldColumn('name', { canTruncate: true }),
    fieldColumn('epoch'),
    ageColumn('seen', 'lastSeenAt'),
  ],
  emptyMessage: 'No runs yet.',
});

/** A run can be abandoned and draining at once; the more urgent state is shown. */
function formatRunState(run: JsonObject): StyledText {
  if (run['abandoned'] === true) return paint('red', 'abandoned');
  if (run['drained'] === false) return paint('yellow', 'draining');
  return typeof run['endedAt'] === 'string' ? 'finished' : paint('green', 'held');
}
