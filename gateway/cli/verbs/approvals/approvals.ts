import { objectField, textField } from '../../json-fields.ts';
import { fieldColumn, type ListColumn, type ListView, listVerb } from '../../list-verb.ts';
import { paint } from '../../output.ts';
import { formatUndoKind } from '../sagas/undo-text.ts';
import { approvalStateStyle, formatGroups, formatTimeLeft, formatVotes } from './approval-text.ts';

const STATES = ['pending', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed', 'any'] as const;

export const approvalsVerb = listVerb({
  name: 'approvals',
  summary: 'list calls that wait for a person, newest first',
  path: '/admin/approvals',
  filters: { state: { value: 'STATE', choices: STATES, help: 'only approvals in this state (default pending)' } },
  buildQuery: ({ text }) => {
    const state = text('state') ?? 'pending';
    return { state: state === 'any' ? undefined : state };
  },
  columns: chooseColumns,
  emptyMessage: 'No call waits for a person.',
  buildHint: ({ state }) =>
    state === 'pending' ? '"oncegate approve <txn> --reason TEXT" shows what would run, and asks you.' : undefined,
});

const STATE: ListColumn = {
  title: 'state',
  cell: (approval) => {
    const state = textField(approval, 'state');
    return paint(approvalStateStyle(state), state);
  },
};
const TIME_LEFT: ListColumn = { title: 'left', cell: (approval, { out }) => formatTimeLeft(out, approval) };
const UNDO: ListColumn = {
  title: 'undo',
  canTruncate: true,
  cell: (approval) => formatUndoKind(objectField(approval, 'undo')),
};
const OTHERS: readonly ListColumn[] = [
  fieldColumn('agent', { canTruncate: true }),
  fieldColumn('tool', { canTruncate: true }),
  { title: 'votes', cell: formatVotes },
  { title: 'by', canTruncate: true, cell: formatGroups },
];
const MIN_WIDTH_WITH_UNDO = 110;

/** A terminal of 80 columns has no room for both the state and the time left, and none for the undo. */
function chooseColumns({ out, query }: ListView): readonly ListColumn[] {
  const txn = fieldColumn('txn');
  if (!out.isTerminal) return [txn, STATE, ...OTHERS, TIME_LEFT, UNDO];
  const columns = query['state'] === 'pending' ? [txn, ...OTHERS, TIME_LEFT] : [txn, STATE, ...OTHERS];
  return out.width >= MIN_WIDTH_WITH_UNDO ? [...columns, UNDO] : columns;
}
