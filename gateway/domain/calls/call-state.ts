/**
 * The states of a call.
 *
 *   held ──approve──▶ ready ──▶ sending ──▶ succeeded | failed
 *    │                  │          │
 *    │                  │          └──▶ in_doubt ──▶ succeeded | failed
 *    └──▶ rejected | expired | cancelled ◀──┘ (cancelled only from ready)
 *
 * A call can go from `ready` to `succeeded` at once, when an observation shows that nothing needs to be sent.
 * A state never goes backwards: a re-send from `in_doubt` stays `in_doubt` until it is answered. A call in `sending` without
 * a living owner has an unknown outcome. A trigger in migrations/0004_sagas.sql enforces the transitions of `CALL_TRANSITIONS`
 * too; a test compares the two.
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
