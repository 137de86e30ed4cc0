import type { JsonObject } from '../../../domain/json.ts';
import type { Style } from '../../output.ts';
import { member } from '../calls/call-text.ts';

export function undoStyle(state: string): Style | undefined {
  if (state === 'done') return 'green';
  if (state === 'due' || state === 'running') return 'yellow';
  return state === 'failed' || state === 'irreversible' ? 'red' : undefined;
}

/** `compensable by payments.refund`: how it would be undone. */
export function describeUndoKind(undo: JsonObject): string {
  return [member(undo, 'kind'), member(undo, 'tool')].filter(Boolean).join(' by ');
}

/** `payments.refund {"charge":"ch_1"}`: what undoes it. */
export function undoCall(undo: JsonObject): string {
  return [member(undo, 'tool'), member(undo, 'args')].filter(Boolean).join(' ');
}

/** `compensable by payments.refund {"charge":"ch_1"}; failed as <txn>: tried 5 times`: all that is known of an undo. */
export function undoText(undo: JsonObject): string {
  const state = member(undo, 'state');
  const [txn, reason] = [member(undo, 'txn'), member(undo, 'reason')];
  const how = [describeUndoKind(undo), member(undo, 'args')].filter(Boolean).join(' ');
  const so = state === '' || state === 'none' ? '' : `; ${state}${txn === '' ? '' : ` as ${txn}`}`;
  return `${how}${so}${reason === '' ? '' : `${so === '' ? '; ' : ': '}${reason}`}`;
}
