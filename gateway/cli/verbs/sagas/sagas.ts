import type { JsonObject } from '../../../domain/json.ts';
import { SAGA_STATES } from '../../../domain/sagas/saga.ts';
import { span } from '../../count-words.ts';
import { type Column, type Output, paint } from '../../output.ts';
import { LIST_OPTIONS, limitOf, readList } from '../../pages.ts';
import type { Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';
import { sagaStyle } from './saga-text.ts';

export const sagasVerb: Verb = {
  name: 'sagas',
  summary: 'the sagas the gateway knows, newest first',
  options: {
    state: { value: 'STATE', choices: SAGA_STATES, help: 'only those in this state' },
    agent: { value: 'AGENT', help: 'only those of this agent' },
    ...LIST_OPTIONS,
  },
  run: async (invocation) => {
    const { io, out, text, flag } = invocation;
    const query = { state: text('state'), agent: text('agent') };
    const { items, cursor } = await readList(io, '/admin/sagas', query, limitOf(invocation));
    out.json({ items, cursor });
    tell(out, items);
    if (out.terminal && items.length === 0)
      out.line(Object.values(query).some(Boolean) ? 'no such sagas' : 'no sagas yet');
    if (out.terminal && cursor !== null && !flag('all')) out.note('There are more: --limit N, or --all.');
    return 0;
  },
};

const COLUMNS: readonly Column[] = [
  { title: 'saga' },
  { title: 'state' },
  { title: 'agent', cut: true },
  { title: 'name', cut: true },
  { title: 'steps' },
  { title: 'age' },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  const now = Date.now();
  out.table(
    COLUMNS,
    items.map((saga) => {
      const state = member(saga, 'state');
      const created = member(saga, 'createdAt');
      const when = out.terminal ? span(now - Date.parse(created)) : created;
      const about = [member(saga, 'agent'), member(saga, 'name'), member(saga, 'steps'), when];
      return [member(saga, 'saga'), paint(sagaStyle(state), state), ...about];
    }),
  );
}
