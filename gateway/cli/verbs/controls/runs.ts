import type { JsonObject } from '../../../domain/json.ts';
import { span } from '../../count-words.ts';
import { type Column, type Output, type Piece, paint } from '../../output.ts';
import { LIST_OPTIONS, limitOf, readList } from '../../pages.ts';
import type { Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

export const runsVerb: Verb = {
  name: 'runs',
  summary: 'the runs of the agents, newest first',
  options: {
    agent: { value: 'AGENT', help: 'only those of this agent' },
    abandoned: { help: 'only those without a sign of life for longer than their ttl' },
    ...LIST_OPTIONS,
  },
  run: async (invocation) => {
    const { io, out, text, flag } = invocation;
    const query = { agent: text('agent'), abandoned: flag('abandoned') ? 'true' : undefined };
    const { items, cursor } = await readList(io, '/admin/runs', query, limitOf(invocation));
    out.json({ items, cursor });
    tell(out, items);
    if (out.terminal && items.length === 0)
      out.line(Object.values(query).some(Boolean) ? 'no such runs' : 'no runs yet');
    if (out.terminal && cursor !== null && !flag('all')) out.note('There are more: --limit N, or --all.');
    return 0;
  },
};

const COLUMNS: readonly Column[] = [
  { title: 'run' },
  { title: 'state' },
  { title: 'agent', cut: true },
  { title: 'name', cut: true },
  { title: 'epoch' },
  { title: 'seen' },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  const now = Date.now();
  out.table(
    COLUMNS,
    items.map((run) => {
      const seen = member(run, 'lastSeenAt');
      const when = out.terminal ? span(now - Date.parse(seen)) : seen;
      const about = [member(run, 'agent'), member(run, 'name'), member(run, 'epoch'), when];
      return [member(run, 'run'), standing(run), ...about];
    }),
  );
}

/** What somebody who looks must know first. */
function standing(run: JsonObject): Piece {
  if (run['abandoned'] === true) return paint('red', 'abandoned');
  if (run['drained'] === false) return paint('yellow', 'draining');
  return typeof run['endedAt'] === 'string' ? 'finished' : paint('green', 'held');
}
