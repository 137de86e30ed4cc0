import { groupByDatabase } from '../group-commit.ts';

/**
 * One at a time and large: an agent that is refused as fast as it can ask would otherwise have a commit for each, and
 * everybody else's claims and renewals of leases wait for a connection behind those. See docs/adr/0008-group-commit.md.
 */
const BATCH = { maxBatch: 128, maxInFlight: 1 };

/** A leaf that stands alone: a decision that changed nothing else. Resolves when it is committed. */
export const enqueueAuditEntry = groupByDatabase<string, void>(BATCH, async (db, entries) => {
  await db.run({
    name: 'log-alone',
    text: 'insert into audit_queue (entry) select * from unnest($1::text[])',
    values: [entries],
  });
  return entries.map(() => undefined);
});
