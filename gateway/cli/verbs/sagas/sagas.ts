import { SAGA_STATES } from '../../../domain/sagas/saga.ts';
import { textField } from '../../json-fields.ts';
import { ageColumn, fieldColumn, listVerb } from '../../list-verb.ts';
import { paint } from '../../output.ts';
import { sagaStateStyle } from './saga-text.ts';

export const sagasVerb = listVerb({
  name: 'sagas',
  summary: 'list sagas, newest first',
  path: '/admin/sagas',
  filters: {
    state: { value: 'STATE', choices: SAGA_STATES, help: 'only sagas in this state' },
    agent: { value: 'AGENT', help: 'only sagas of this agent' },
  },
  buildQuery: ({ text }) => ({ state: text('state'), agent: text('agent') }),
  columns: [
    fieldColumn('saga'),
    {
      title: 'state',
      cell: (saga) => {
        const state = textField(saga, 'state');
        return paint(sagaStateStyle(state), state);
      },
    },
    fieldColumn('agent', { canTruncate: true }),
    fieldColumn('name', { canTruncate: true }),
    fieldColumn('steps'),
    ageColumn('age', 'createdAt'),
  ],
  emptyMessage: 'No sagas yet.',
});
