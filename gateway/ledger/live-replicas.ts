import type pg from 'pg';
import { describeHost, isReplicaGone, type ReplicaIdentity } from './process-lease.ts';

/** Enough to start looking. A list of hundreds would hide the sentence around it. */
const MAX_NAMED_REPLICAS = 5;

/**
 * Locks out all registered replicas until the transaction ends, or returns those that may still send: their lease has not
 * lapsed, and they are not known to be dead. The lock delays registrations and renewals. A renewal that began before the
 * transaction compares the lease with its own start time, so it could revive a lapsed lease after the transaction. Therefore the
 * leases are set to the beginning of time. `ended_at` stays: a lapsed replica may be paused, and only a dead one has ended.
 */
export async function lockOutReplicas(client: pg.Client): Promise<readonly ReplicaIdentity[]> {
  const { rows: found } = await client.query<{ is_there: boolean }>(
    `select to_regclass('processes') is not null as is_there`,
  );
  if (found[0]?.is_there !== true) return [];
  await client.query('lock table processes in share row exclusive mode');
  // `now()` would be the time before the wait for the lock.
  const { rows } = await client.query<ReplicaIdentity>(
    `select host, pid, pid_started as "pidStarted" from processes
     where lease_until > clock_timestamp() and ended_at is null order by started_at, id`,
  );
  const live = rows.filter((replica) => !isReplicaGone(replica));
  if (live.length === 0) await client.query(`update processes set lease_until = '-infinity' where ended_at is null`);
  return live;
}

/** `2 replicas of an earlier version (pid 4711 on this host, pid 7 on host 1c2d3e4f)` */
export function describeReplicas(replicas: readonly ReplicaIdentity[]): string {
  const named = replicas.slice(0, MAX_NAMED_REPLICAS).map(({ host, pid }) => `pid ${pid} ${describeHost(host)}`);
  const unnamed = replicas.length - named.length;
  const list = [...named, ...(unnamed > 0 ? [`${unnamed} more`] : [])].join(', ');
  return `${replicas.length} ${replicas.length === 1 ? 'replica' : 'replicas'} of an earlier version (${list})`;
}
