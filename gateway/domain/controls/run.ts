import type { CallState } from '../calls/call-state.ts';
import type { Taint } from './taint.ts';

/**
 * A run is work of one agent that outlives its processes. Each takeover raises the epoch, and a holder of an older epoch can
 * start no call. A takeover cancels the unsent calls of older epochs. Their sent calls may still have an effect; the run is
 * *drained* when none of them can.
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
  /** The run has not ended, and was last seen longer ago than its `ttl`. */
  readonly abandoned: boolean;
  readonly endedAt: Date | null;
  readonly checkpointAt: Date | null;
  /** Calls of earlier epochs that may still have an effect. */
  readonly openCount: number;
  /** Set if untrusted content was read in the run. */
  readonly tainted: Taint | null;
}

/** The run and epoch that the holder sends with every request. */
export interface RunEpoch {
  readonly run: string;
  readonly epoch: number;
}

/** A call of an earlier epoch that may still have an effect. */
export interface OlderOpenCall {
  readonly txn: string;
  readonly tool: string;
  readonly state: CallState;
  readonly epoch: number;
  readonly createdAt: Date;
}
