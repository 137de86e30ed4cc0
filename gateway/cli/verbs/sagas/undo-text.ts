import type { JsonObject } from '../../../domain/json.ts';
import { textField } from '../../json-fields.ts';
import type { Style } from '../../output.ts';

export function undoStateStyle(state: string): Style | undefined {
  if (state === 'done') return 'green';
  if (state === 'due' || state === 'running') return 'yellow';
  return state === 'failed' || state === 'irreversible' ? 'red' : undefined;
}

/** `compensable by payments.refund` */
export function formatUndoKind(undo: JsonObject): string {
  return [textField(undo, 'kind'), textField(undo, 'tool')].filter(Boolean).join(' by ');
}

/** `payments.refund {"charge":"ch_1"}` */
export function formatUndoCall(undo: JsonObject): string {
  return [textField(undo, 'tool'), textField(undo, 'args')].filter(Boolean).join(' ');
}

/** `compensable by payments.refund {"charge":"ch_1"}; failed as <txn>: tried 5 times` */
export function formatUndo(undo: JsonObject): string {
  const state = textField(undo, 'state');
  const [txn, reason] = [textField(undo, 'txn'), textField(undo, 'reason')];
  const how = [formatUndoKind(undo), textField(undo, 'args')].filter(Boolean).join(' ');
  const progress = state === '' || state === 'none' ? '' : `; ${state}${txn === '' ? '' : ` as ${txn}`}`;
  return `${how}${progress}${reason === '' ? '' : `${progress === '' ? '; ' : ': '}${reason}`}`;
}
