import { textField } from '../../json-fields.ts';
import { ageColumn, fieldColumn, listVerb } from '../../list-verb.ts';
import { paint } from '../../output.ts';

export const locksVerb = listVerb({
  name: 'locks',
  summary: 'list locks and which call, saga or run holds them',
  path: '/admin/locks',
  filters: {
    agent: { value: 'AGENT', help: 'only locks of this agent' },
    holder: { value: 'ID', help: 'only locks of this call, saga or run' },
  },
  buildQuery: ({ text }) => ({ agent: text('agent'), holder: text('holder') }),
  columns: [
    fieldColumn('resource', { canTruncate: true }),
    {
      title: 'mode',
      cell: (lock) => {
        const mode = textField(lock, 'mode');
        return paint(mode === 'exclusive' ? 'yellow' : undefined, mode);
      },
    },
    fieldColumn('for'),
    fieldColumn('holder'),
    fieldColumn('agent', { canTruncate: true }),
    fieldColumn('tool', { canTruncate: true }),
    ageColumn('age', 'since'),
  ],
  emptyMessage: 'Nothing is locked.',
});
