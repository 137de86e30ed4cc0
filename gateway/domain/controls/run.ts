import type { CallState } from '../calls/call-state.ts';
import type { Taint } from './taint.ts';

/**
 * A run: the work of one agent that outlives its processes. Whoever takes it holds it in a new epoch; every older holder can
 * begin nothing any more, however late it wakes up. A take-over withdraws what the older epochs had not sent yet; what they
 * did send may still land, and the run is *drained* once none of it can.
 */
export interface Run {
  readonly id: string;
  readonly agent: string;
  readonly name: string;
  readonly epoch: number;
  readonly createdAt: Date;
  readonly takenAt: Date;
  /** The newest of: taken, heartbeat, checkpoint, call. */
  readonly lastSeenAt: Date;
  readonly ttlMs: number | null;
  /** No sign of life for longer than its `ttl`, and nobody said that it is done. */
  readonly abandoned: boolean;
  readonly endedAt: Date | null;
  readonly checkpointAt: Date | null;
  /** Calls of earlier epochs that may still have an effect. */
  readonly openCount: number;
  /** What strangers wrote was read in it. */
  readonly tainted: Taint | null;
}

/** What the holder of a run names in every request. */
export interface RunEpoch {
  readonly run: string;
  readonly epoch: number;
}

/** A call of an earlier epoch that may still land. */
export interface OlderOpenCall {
  readonly txn: string;
  readonly tool: string;
  readonly state: CallState;
  readonly epoch: number;
  readonly createdAt: Date;
}
