import type { CallEvent } from '../../domain/calls/call-record.ts';
import type { Queryable, Tx } from '../db.ts';

/**
 * The timelines of calls, for people to read. Events are only added, in the transaction of what they describe, and erased with
 * the payload. No decision reads them (docs/adr/0047-decisions-read-columns.md).
 */

/** Adds events to the timeline of a call, in this order. The caller commits them with what they describe. */
export async function appendCallEvents(tx: Tx, txn: string, events: readonly CallEvent[]): Promise<void> {
  await tx.run({
    name: 'append-call-events',
    text: `insert into call_events (txn, event)
      select $1, e.event from jsonb_array_elements($2::jsonb) with ordinality as e(event, place) order by e.place`,
    values: [txn, JSON.stringify(events)],
  });
}

/** Finds the contradictions of calls, at most one of each. An index holds only these events, so long timelines are not read. */
export async function findContradictions(
  db: Queryable,
  txns: readonly string[],
): Promise<ReadonlyMap<string, CallEvent>> {
  const rows = await db.run<{ txn: string; event: CallEvent }>({
    name: 'read-contradictions',
    text: `select txn, event from call_events where txn = any($1::uuid[]) and event ->> 'what' = 'contradiction'`,
    values: [txns],
  });
  return new Map(rows.map(({ txn, event }) => [txn, event]));
}

/** Reads the timelines of calls in one snapshot, each in the order in which its events were written. */
export async function readCallEvents(
  db: Queryable,
  txns: readonly string[],
): Promise<ReadonlyMap<string, readonly CallEvent[]>> {
  const rows = await db.run<{ txn: string; events: readonly CallEvent[] }>({
    name: 'read-call-events',
    text: `select txn, jsonb_agg(event order by id) as events from call_events where txn = any($1::uuid[]) group by txn`,
    values: [txns],
  });
  return new Map(rows.map(({ txn, events }) => [txn, events]));
}
