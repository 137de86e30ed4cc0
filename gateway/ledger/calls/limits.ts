import type { Tx } from '../db.ts';

/** One thing a call uses up: one of so many calls, or an amount of a budget, within a sliding window. */
export interface LimitCharge {
  readonly kind: 'rate' | 'budget';
  /** Whose limit it is: the same for every replica and across restarts. */
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
  /** When enough of the window will have passed; null: never, the amount alone is too much. */
  readonly waitMs: number | null;
}

/**
 * Counts a call against its limits, in the transaction of its claim. The buckets' rows are locked in one order, so the
 * count is exact whatever the number of replicas and no two calls wait for each other in a circle. What is counted and
 * then not claimed is rolled back with the claim.
 */
export async function chargeLimits(
  tx: Tx,
  txn: string,
  spends: readonly LimitCharge[],
): Promise<LimitExceeded | undefined> {
  const inOrder = [...spends].sort((a, b) => (a.bucket < b.bucket ? -1 : 1));
  let exceeded: LimitExceeded | undefined;
  for (const spend of inOrder) {
    await lockBucket(tx, spend.bucket);
    await deleteExpiredCharges(tx, spend);
    const { used, fits } = await readUsage(tx, spend);
    if (!fits) {
      // Of several, the one that lasts longest: whoever comes back after that finds none in the way.
      const waitMs = await computeWaitMs(tx, spend);
      if (exceeded === undefined || waitOrInfinity(waitMs) > waitOrInfinity(exceeded.waitMs))
        exceeded = { kind: 'limit_exceeded', charge: spend, used, waitMs };
      continue;
    }
    await tx.run({
      name: 'spend',
      text: 'insert into spends (bucket, txn, amount) values ($1, $2, $3)',
      values: [spend.bucket, txn, spend.amount],
    });
  }
  return exceeded;
}

function waitOrInfinity(waitMs: number | null): number {
  return waitMs ?? Number.POSITIVE_INFINITY;
}

export async function lockBucket(tx: Tx, bucket: string): Promise<void> {
  const lock = {
    name: 'lock-bucket',
    text: 'select bucket from limit_buckets where bucket = $1 for update',
    values: [bucket],
  };
  if ((await tx.run(lock)).length > 0) return;
  await tx.run({
    name: 'make-bucket',
    text: 'insert into limit_buckets values ($1) on conflict do nothing',
    values: [bucket],
  });
  await tx.run(lock);
}

async function deleteExpiredCharges(tx: Tx, { bucket, perMs }: LimitCharge): Promise<void> {
  await tx.run({
    name: 'forget-spends',
    text: `delete from spends where bucket = $1 and at <= clock_timestamp() - $2 * interval '1 ms'`,
    values: [bucket, perMs],
  });
}

/** Added up as the decimals they were written as: three times 0.1 fits into 0.3. */
async function readUsage(tx: Tx, { bucket, amount, max }: LimitCharge): Promise<{ used: number; fits: boolean }> {
  const rows = await tx.run<{ used: number; fits: boolean }>({
    name: 'used',
    text: `select used::float8 as used, used + $2::text::numeric <= $3::text::numeric as fits
      from (select coalesce(sum(amount::text::numeric), 0) as used from spends where bucket = $1) s`,
    values: [bucket, String(amount), String(max)],
  });
  return rows[0] ?? { used: 0, fits: false };
}

/** The oldest spends leave the window first: how long until enough of them have. */
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

/** What is left of a limit, without counting anything: for explanations. */
export async function readCurrentUsage(
  db: { run: Tx['run'] },
  { bucket, perMs }: Pick<LimitCharge, 'bucket' | 'perMs'>,
): Promise<number> {
  const rows = await db.run<{ used: number }>({
    name: 'used-now',
    text: `select coalesce(sum(amount), 0)::float8 as used from spends where bucket = $1 and at > clock_timestamp() - $2 * interval '1 ms'`,
    values: [bucket, perMs],
  });
  return rows[0]?.used ?? 0;
}
