/**
 * The life of a call.
 *
 *   held ──approve──▶ ready ──▶ sending ──▶ succeeded | failed
 *    │                  │          │
 *    │                  │          └──▶ in_doubt ──▶ succeeded | failed
 *    └──▶ rejected | expired | cancelled ◀──┘ (cancelled only from ready)
 *
 * From `ready` it may succeed at once: the world was as asked before anything was sent.
 * A state never goes backwards: a re-send from `in_doubt` stays `in_doubt` until it is answered. `sending` found without
 * a living owner *means* unknown. The same table is enforced by a trigger in migrations/0004_sagas.sql; a test holds
 * the two together.
 */
export const CALL_STATES = [
  'held',
  'ready',
  'sending',
  'in_doubt',
  'succeeded',
  'failed',
  'rejected',
  'expired',
  'cancelled',
] as const;

export type CallState = (typeof CALL_STATES)[number];

export const CALL_TRANSITIONS: Readonly<Record<CallState, readonly CallState[]>> = {
  held: ['ready', 'sending', 'rejected', 'expired', 'cancelled'],
  ready: ['sending', 'succeeded', 'failed', 'cancelled', 'expired'],
  sending: ['in_doubt', 'succeeded', 'failed'],
  in_doubt: ['succeeded', 'failed'],
  succeeded: [],
  failed: [],
  rejected: [],
  expired: [],
  cancelled: [],
};

export function isFinalState(state: CallState): boolean {
  return CALL_TRANSITIONS[state].length === 0;
}
