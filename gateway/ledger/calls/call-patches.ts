import type { CallEvent, CallRecord, CallSettlement } from '../../domain/calls/call-record.ts';

/** The data of an undo: the observed state before the call, the arguments in clear or sealed, or the reason why they are missing. */
export interface UndoArguments {
  readonly before: string | null;
  readonly args: string | null;
  readonly sealed: Buffer | null;
  readonly reason: string | null;
}

/** What every patch of an open call has. */
interface PatchFields {
  readonly txn: string;
  readonly fence: number;
  /** The number of this patch of the row. A patch applies only after its predecessor; a repeat of an applied one reports success. */
  readonly updateNumber: number;
  /** Age of the newest attempt whose outcome is unknown. */
  readonly unknownSinceMs: number | null;
  /** What became known about the undo. */
  readonly undo: UndoArguments | null;
  /** The audit entry, written in the same statement. */
  readonly entry: string;
}

/** An update of an open call. It applies only with the current fence. */
export interface OpenCallPatch
  extends PatchFields,
    Pick<CallRecord, 'state' | 'attempt' | 'attemptOpen' | 'unresolved' | 'detail' | 'attemptDetail' | 'disprovedBy'> {
  /** The call has no owner until it is due (null: until a person decides). Null: the owner keeps the call. */
  readonly parked: { readonly dueInMs: number | null } | null;
  /** An entry of the timeline. */
  readonly event: CallEvent | null;
}

/** The end of a call. It applies to an open call only, and only with the current fence, unless it is evidence. */
export interface SettlementPatch extends PatchFields, Omit<CallSettlement, 'settledAt'>, Pick<CallRecord, 'detail'> {
  /** An answer of the upstream or of a probe. It is true under any owner, so it applies under any fence. */
  readonly isEvidence: boolean;
  readonly state: 'succeeded' | 'failed';
}
