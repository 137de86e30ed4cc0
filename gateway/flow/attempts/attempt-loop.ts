import type { Outcome } from '../../domain/attempts/adapter.ts';
import type { NextAction } from '../../domain/attempts/next-action.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { CancelToken } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { type DispatchResult, type InFlightCall, patchCall } from './in-flight-call.ts';

/** The state that the actions of one call share while this process works on it. */
export interface AttemptLoop {
  readonly ctx: Context;
  readonly call: InFlightCall;
  /** The parent of the spans of the attempts. */
  readonly span: Span;
  /** Cancelled when this process begins to shut down. */
  readonly shutdownToken: CancelToken;
  /** The outcome of the newest attempt of this process. A failed observation before the send counts as `not_sent`. */
  lastOutcome: Outcome | undefined;
  /** The failed observations before the first attempt. */
  failedObservations: number;
}

/** What an action leads to: the next action, or the result that ends the work of this process on the call. */
export type ActionResult = NextAction | DispatchResult;

/** The fields that every span of a call has. */
export function toSpanSubject({ record: { tool, agent, txn } }: InFlightCall) {
  return { tool, agent, txn };
}

/** Closes the open attempt. `isUnknown`: it may have had an effect. */
export function closeAttempt(call: InFlightCall, isUnknown: boolean): void {
  patchCall(call, { attemptOpen: false });
  if (!isUnknown) return;
  patchCall(call, { unresolved: call.record.unresolved + 1 });
  call.times.unknownSince = performance.now();
}
