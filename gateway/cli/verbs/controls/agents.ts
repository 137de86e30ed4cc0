import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { type Column, type Output, paint } from '../../output.ts';
import { readList } from '../../pages.ts';
import type { Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

export const agentsVerb: Verb = {
  name: 'agents',
  summary: 'the agents the policies know, and who is frozen',
  run: async ({ io, out }) => {
    const { items } = await readList(io, '/admin/agents', {}, Number.POSITIVE_INFINITY);
    out.json({ items, cursor: null });
    tell(out, items);
    if (out.terminal && items.length === 0) out.line('there are no agents');
    return 0;
  },
};

const COLUMNS: readonly Column[] = [
  { title: 'agent', cut: true },
  { title: 'state' },
  { title: 'rules' },
  { title: 'frozen by', cut: true },
  { title: 'reason', cut: true },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  out.table(
    COLUMNS,
    items.map((agent) => {
      const { rules, frozen } = agent;
      const count = String(Array.isArray(rules) ? rules.length : 0);
      const name = member(agent, 'agent');
      if (!isJsonObject(frozen)) return [name, paint('green', 'active'), count, '', ''];
      return [name, paint('red', 'frozen'), count, member(frozen, 'by'), member(frozen, 'reason')];
    }),
  );
}
