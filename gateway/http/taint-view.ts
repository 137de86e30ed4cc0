import type { Taint } from '../domain/controls/taint.ts';
import type { TaintView } from './schemas/fields.ts';

/** The call that tainted a run or saga; null while it is clean. */
export function taintView(taint: Taint | null): TaintView {
  return taint === null ? null : { txn: taint.txn, tool: taint.tool, since: taint.since };
}
