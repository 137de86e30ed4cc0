import { isJsonObject } from '../../../domain/json.ts';
import { textField } from '../../json-fields.ts';
import { fieldColumn, listVerb } from '../../list-verb.ts';
import { paint } from '../../output.ts';

export const agentsVerb = listVerb({
  name: 'agents',
  summary: 'list agents, and which of them are frozen',
  path: '/admin/agents',
  isPaged: false,
  columns: [
    fieldColumn('agent', { canTruncate: true }),
    {
      title: 'state',
      cell: ({ frozen }) => (isJsonObject(frozen) ? paint('red', 'frozen') : paint('green', 'active')),
    },
    { title: 'rules', cell: ({ rules }) => String(Array.isArray(rules) ? rules.length : 0) },
    {
      title: 'frozen by',
      canTruncate: true,
      cell: ({ frozen }) => (isJsonObject(frozen) ? textField(frozen, 'by') : ''),
    },
    {
      title: 'reason',
      canTruncate: true,
      cell: ({ frozen }) => (isJsonObject(frozen) ? textField(frozen, 'reason') : ''),
    },
  ],
  emptyMessage: 'The policies have no agents.',
});
