import type { Queryable, Tx } from '../db.ts';

/** What one call uses of one limit: one call of a rate, or an amount of a budget, within a sliding window. */
export interface LimitCharge {
  readonly kind: 'rate' | 'budget';
  /** The id of the limit, the same on every replica and across restarts. */
  readonly bucket: string;
  readonly amount: number;
  readonly max: number;
  readonly perMs: number;
}

/** The limit that refuses a claim. */
export interface LimitExceeded {
  readonly kind: 'limit_exceeded';
  readonly charge: LimitCharge;
  readonly used: number;
  /** Time until the charge fits; null: never, because the amount alone exceeds the limit. */
  readonly waitMs: number | null;
}

/**
 * Charges a call to its limits, in the transaction of its claim. Each bucket row stays locked until the commit, so the count is
 * exact with any number of replicas. Buckets are locked in one order, so two calls never wait in a circle. If the claim is
 * refused, its charges are rolled back.
 */
export async function chargeLimits(
  tx: Tx,
  txn: string,
  charges: readonly LimitCharge[],
): Promise<LimitExceeded | undefined> {
  const inOrder = [...charges].sort((a, b) => (a.bucket < b.bucket ? -1 : 1));
  let exceeded: LimitExceeded | undefined;
  for (const charge of inOrder) {
    await lockBucket(tx, charge.bucket);
    await deleteExpiredCharges(tx, charge);
    const { used, fits } = await readUsage(tx, charge);
    if (!fits) {
      // Reports the limit with the longest wait: after that wait, all of them have room.
      const waitMs = await computeWaitMs(tx, charge);
      if (exceeded === undefined || waitOrInfinity(waitMs) > waitOrInfinity(exceeded.waitMs))
        exceeded = { kind: 'limit_exceeded', charge, used, waitMs };
      continue;
    }
    await insertCharge(tx, txn, charge);
  }
  return exceeded;
}

function waitOrInfinity(waitMs: number | null): number {
  return waitMs ?? Number.POSITIVE_INFINITY;
}

/** The caller holds the lock of the bucket, so no charge comes between the check and this insert. */
async function insertCharge(tx: Tx, txn: string, { bucket, amount }: LimitCharge): Promise<void> {
  await tx.run({
    name: 'insert-charge',
    text: 'insert into spends (bucket, txn, amount) values ($1, $2, $3)',
    values: [bucket, txn, amount],
  });
}

/**
 * Locks the row of a bucket until the transaction ends, and creates it first if needed. If two transactions create it at the same
 * moment, `on conflict do nothing` waits for the other; then both lock the same row, one after the other.
 */
export async function lockBucket(tx: Tx, bucket: string): Promise<void> {
  const lock = {
    name: 'lock-bucket',
    text: 'select bucket from limit_buckets where bucket = $1 for update',
    values: [bucket],
  };
  if ((await tx.run(lock)).length > 0) return;
  await tx.run({
    name: 'insert-bucket',
    text: 'insert into limit_buckets values ($1) on conflict do nothing',
    values: [bucket],
  });
  await tx.run(lock);
}

/** Deletes charges outside of the window. Uses the clock at this moment: the transaction may have waited for the lock. */
async function deleteExpiredCharges(tx: Tx, { bucket, perMs }: LimitCharge): Promise<void> {
  await tx.run({
    name: 'delete-expired-charges',
    text: `delete from spends where bucket = $1 and at <= clock_timestamp() - $2 * interval '1 ms'`,
    values: [bucket, perMs],
  });
}

/** Whether the charge fits. Adds as decimals, so that three times 0.1 fits into 0.3. Exact under the lock of the bucket. */
async function readUsage(tx: Tx, { bucket, amount, max }: LimitCharge): Promise<{ used: number; fits: boolean }> {
  const rows = await tx.run<{ used: number; fits: boolean }>({
    name: 'read-usage',
    text: `select used::float8 as used, used + $2::text::numeric <= $3::text::numeric as fits
      from (select coalesce(sum(amount::text::numeric), 0) as used from spends where bucket = $1) s`,
    values: [bucket, String(amount), String(max)],
  });
  return rows[0] ?? { used: 0, fits: false };
}

/** Time until enough of the oldest charges have left the window. Exact under the lock of the bucket. */
async function computeWaitMs(tx: Tx, { bucket, amount, max, perMs }: LimitCharge): Promise<number | null> {
  if (amount > max) return null;
  const rows = await tx.run<{ wait: number }>({
    name: 'limit-wait',
    text: `select extract(epoch from at + $4 * interval '1 ms' - clock_timestamp())::float8 * 1000 as wait
      from (select at, sum(exact) over () - sum(exact) over (order by at, txn) as left_over
        from (select at, txn, amount::text::numeric as exact from spends where bucket = $1) e) s
      where left_over + $2::text::numeric <= $3::text::numeric order by at limit 1`,
    values: [bucket, String(amount), String(max), perMs],
  });
  return Math.max(0, rows[0]?.wait ?? perMs);
}

/** The current usage of a limit, for explanations. Reads without the lock, so it may be outdated on arrival. */
export async function readCurrentUsage(
  db: Queryable,
  { bucket, perMs }: Pick<LimitCharge, 'bucket' | 'perMs'>,
): Promise<number> {
  const rows = await db.run<{ used: number }>({
    name: 'read-current-usage',
    text: `select coalesce(sum(amount), 0)::float8 as used from spends where bucket = $1 and at > clock_timestamp() - $2 * interval '1 ms'`,
    values: [bucket, perMs],
  });
  return rows[0]?.used ?? 0;
}
