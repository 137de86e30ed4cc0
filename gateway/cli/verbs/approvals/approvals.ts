import type { JsonObject } from '../../../domain/json.ts';
import { type Column, type Output, paint } from '../../output.ts';
import { LIST_OPTIONS, limitOf, readList } from '../../pages.ts';
import type { Verb } from '../../verb.ts';
import { member, memberObject } from '../calls/call-text.ts';
import { describeUndoKind } from '../sagas/undo-text.ts';
import { approvalStyle, groupsText, untilText, votesText } from './approval-text.ts';

const STATES = ['pending', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed', 'any'] as const;

export const approvalsVerb: Verb = {
  name: 'approvals',
  summary: 'what waits for a person, newest first',
  options: {
    state: { value: 'STATE', choices: STATES, help: 'those in this state (default pending)' },
    ...LIST_OPTIONS,
  },
  run: async (invocation) => {
    const { io, out, text, flag } = invocation;
    const state = text('state') ?? 'pending';
    const query = { state: state === 'any' ? undefined : state };
    const { items, cursor } = await readList(io, '/admin/approvals', query, limitOf(invocation));
    out.json({ items, cursor });
    tell(out, items, state === 'pending');
    if (out.terminal && items.length === 0)
      out.line(state === 'pending' ? 'nothing waits for a person' : 'no such approvals');
    if (out.terminal && cursor !== null && !flag('all')) out.note('There are more: --limit N, or --all.');
    if (out.terminal && state === 'pending' && items.length > 0)
      out.note('"oncegate approve <txn> --reason TEXT" shows what would run, and asks.');
    return 0;
  },
};

/** A terminal has room for the state or for the time that is left; what waits is in one state. */
const PENDING: readonly Column[] = [
  { title: 'txn' },
  { title: 'agent', cut: true },
  { title: 'tool', cut: true },
  { title: 'votes' },
  { title: 'by', cut: true },
  { title: 'left' },
];
const DECIDED: readonly Column[] = [{ title: 'txn' }, { title: 'state' }, ...PENDING.slice(1, -1)];
/** A terminal that is wide enough also shows how it would be undone. */
const UNDO: Column = { title: 'undo', cut: true };
const WIDE = 110;

function tell(out: Output, items: readonly JsonObject[], isPending: boolean): void {
  if (items.length === 0) return;
  const isWide = out.width >= WIDE;
  const columns = isPending ? PENDING : DECIDED;
  out.table(
    isWide ? [...columns, UNDO] : columns,
    items.map((approval) => {
      const state = member(approval, 'state');
      const txn = member(approval, 'txn');
      const about = [member(approval, 'agent'), member(approval, 'tool'), votesText(approval), groupsText(approval)];
      const until = untilText(out, approval);
      const undo = describeUndoKind(memberObject(approval, 'undo'));
      if (!out.terminal) return [txn, state, ...about, until, undo];
      const more = isWide ? [undo] : [];
      if (isPending) return [txn, ...about, until, ...more];
      return [txn, paint(approvalStyle(state), state), ...about, ...more];
    }),
  );
}
