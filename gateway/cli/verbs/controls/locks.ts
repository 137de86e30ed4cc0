import type { JsonObject } from '../../../domain/json.ts';
import { span } from '../../count-words.ts';
import { type Column, type Output, paint } from '../../output.ts';
import { LIST_OPTIONS, limitOf, readList } from '../../pages.ts';
import type { Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

export const locksVerb: Verb = {
  name: 'locks',
  summary: 'what is locked, by which call, saga or run, newest first',
  options: {
    agent: { value: 'AGENT', help: 'only what this agent locked' },
    holder: { value: 'ID', help: 'only what this call, saga or run holds' },
    ...LIST_OPTIONS,
  },
  run: async (invocation) => {
    const { io, out, text, flag } = invocation;
    const query = { agent: text('agent'), holder: text('holder') };
    const { items, cursor } = await readList(io, '/admin/locks', query, limitOf(invocation));
    out.json({ items, cursor });
    tell(out, items);
    if (out.terminal && items.length === 0)
      out.line(Object.values(query).some(Boolean) ? 'nothing of that is locked' : 'nothing is locked');
    if (out.terminal && cursor !== null && !flag('all')) out.note('There are more: --limit N, or --all.');
    return 0;
  },
};

const COLUMNS: readonly Column[] = [
  { title: 'resource', cut: true },
  { title: 'mode' },
  { title: 'for' },
  { title: 'holder' },
  { title: 'agent', cut: true },
  { title: 'tool', cut: true },
  { title: 'age' },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  const now = Date.now();
  out.table(
    COLUMNS,
    items.map((lock) => {
      const since = member(lock, 'since');
      const mode = member(lock, 'mode');
      return [
        member(lock, 'resource'),
        paint(mode === 'exclusive' ? 'yellow' : undefined, mode),
        member(lock, 'for'),
        member(lock, 'holder'),
        member(lock, 'agent'),
        member(lock, 'tool'),
        out.terminal ? span(now - Date.parse(since)) : since,
      ];
    }),
  );
}
