import {
  Frontier,
  HASH_BYTES,
  type Proof,
  type StoredHash,
  StoredHashes,
  type StoredRange,
} from '../../domain/audit/merkle.ts';
import type { Database, Queryable, Tx } from '../db.ts';

/** Small enough to stay within the statement timeout, large enough to share the cost of a commit among many leaves. */
export const MAX_LEAVES_PER_BATCH = 2_000;

export interface SealedBatch {
  readonly size: number;
  readonly note: string;
  /** More entries may wait. */
  readonly isFull: boolean;
}

export interface LoggedEntry {
  readonly index: number;
  readonly leaf: Buffer;
  readonly entry: string;
  /** The checkpoint that was signed when this was the last entry. Most entries have none. */
  readonly checkpoint: string | null;
}

/** The log in the database before new entries: its recomputed root and the newest signed checkpoint. */
export interface LogTip {
  readonly size: number;
  readonly root: Buffer;
  readonly note: string | undefined;
}

/** Signs the extended log. Throws if `before` is not the log that the signer knows. */
export type SignCheckpoint = (before: LogTip, size: number, root: Buffer) => Promise<string>;

interface HeadRow {
  readonly size: string;
  readonly settled_id: string;
  readonly is_over: boolean;
}

/**
 * Whether leaves wait and the newest checkpoint is older than `sinceMs`. A checkpoint from the future counts as old,
 * because the clock was set back. Reads without locking: `sealLeaves` decides again under the lock.
 */
export async function hasWaitingLeaves(db: Database, sinceMs: number): Promise<boolean> {
  const rows = await db.run({
    name: 'leaves-wait',
    text: `select 1 from audit_head h
      where not (h.sealed_at between clock_timestamp() - $1 * interval '1 ms' and clock_timestamp())
        and exists (select 1 from audit_queue q where q.id > h.settled_id)`,
    values: [sinceMs],
  });
  return rows.length > 0;
}

/**
 * Moves waiting leaves from the queue to the log and signs the new tree, in one transaction. So every leaf of the log is
 * covered by a checkpoint, and a crash at any point leaves the leaves in the queue. Only the holder of the head row does this;
 * the others return undefined at once. Queue ids are not in commit order, so the log numbers the leaves anew.
 */
export function sealLeaves(
  db: Database,
  sign: SignCheckpoint,
  limit: number = MAX_LEAVES_PER_BATCH,
): Promise<SealedBatch | undefined> {
  return db.transaction(async (tx) => {
    const head = await lockHead(tx);
    if (head === undefined) return undefined;
    const before = Number(head.size);
    const { leaves, lastId } = await appendLeaves(tx, before, head.settled_id, limit);
    if (leaves.length === 0) return undefined;
    const frontier = Frontier.restore(before, await readStoredHashes(tx, Frontier.listRequiredRanges(before)));
    const tip = { size: before, root: frontier.computeRoot(), note: await readNewestCheckpoint(tx) };
    const nodes: StoredHash[] = [];
    for (const leaf of leaves) frontier.append(leaf, (node) => nodes.push(node));
    const { size } = frontier;
    const note = await sign(tip, size, frontier.computeRoot());
    const isFull = leaves.length === limit;
    await updateHead(tx, { size, note, nodes, lastId, isOver: head.is_over, isFull });
    return { size, note, isFull };
  });
}

/**
 * Takes the head row, which makes this process the sequencer until the transaction ends. `skip locked` returns nothing while
 * another process holds it. The setting allows this transaction to delete from the queue, which a trigger forbids to all
 * others. `is_over`: every transaction that may have drawn an id up to `settling_id` has ended.
 */
async function lockHead(tx: Tx): Promise<HeadRow | undefined> {
  const rows = await tx.run<HeadRow>({
    name: 'lock-audit-head',
    text: `select size, settled_id, set_config('oncegate.sequencing', 'on', true),
        settling_at < clock_timestamp() - interval '1 minute' and (
          settling_xid <= pg_snapshot_xmin(pg_current_snapshot())
          -- The id comes from another server, from which this database was restored: its transactions have all ended.
          or settling_xid > pg_snapshot_xmax(pg_current_snapshot())) as is_over
      from audit_head for update skip locked`,
    values: [],
  });
  return rows[0];
}

/**
 * Moves the oldest leaves from the queue to the log. Only the holder of the head row deletes from the queue, so no leaf moves
 * twice. PostgreSQL hashes the leaves, so their texts need not travel.
 */
async function appendLeaves(tx: Tx, size: number, settledId: string, limit: number) {
  const [appended] = await tx.run<{ leaves: Buffer | null; last_id: string | null }>({
    name: 'append-leaves',
    text: `with taken as (
        delete from audit_queue where ctid = any (array(select ctid from audit_queue where id > $2 order by id limit $3))
        returning id, entry
      ), appended as (
        insert into audit_log (index, leaf, entry)
        select $1::bigint + row_number() over (order by id) - 1, sha256('\\x00'::bytea || convert_to(entry, 'UTF8')), entry from taken
        returning index, leaf
      )
      select (select string_agg(leaf, ''::bytea order by index) from appended) as leaves, (select max(id) from taken) as last_id`,
    values: [size, settledId, limit],
  });
  return { leaves: splitHashes(appended?.leaves ?? null), lastId: appended?.last_id ?? '0' };
}

/** The hashes arrive as one value: reading one row for each would take as long as the rest of sealing. */
function splitHashes(bytes: Buffer | null): Buffer[] {
  const count = bytes === null ? 0 : bytes.length / HASH_BYTES;
  return Array.from({ length: count }, (_, i) => (bytes as Buffer).subarray(i * HASH_BYTES, (i + 1) * HASH_BYTES));
}

interface HeadUpdate {
  readonly size: number;
  readonly note: string;
  readonly nodes: readonly StoredHash[];
  readonly lastId: string;
  /** Every transaction that may have drawn an id up to `settling_id` has ended. */
  readonly isOver: boolean;
  readonly isFull: boolean;
}

/**
 * Stores the new nodes and checkpoint, and moves the head. Up to `settled_id` the queue stays empty, so later reads skip its dead
 * rows. `settled_id` becomes `settling_id` when no leaf up to `settling_id` waits or can still appear. That needs two facts: every
 * transaction that may have drawn such an id has ended (`isOver`), and this batch took their leaves. A full batch took every
 * visible leaf up to `lastId`; any other batch took all. The head row is locked meanwhile.
 */
async function updateHead(tx: Tx, { size, note, nodes, lastId, isOver, isFull }: HeadUpdate): Promise<void> {
  await tx.run({
    name: 'move-audit-head',
    text: `with stored as (
        insert into audit_nodes (level, index, hash) select * from unnest($3::int[], $4::bigint[], $5::bytea[])
      ), signed as (
        insert into audit_checkpoints (size, note) values ($1, $2)
      ), settles as (
        select $6::boolean and (not $7::boolean or settling_id <= $8::bigint) as it from audit_head
      )
      update audit_head set size = $1, sealed_at = clock_timestamp(),
        settled_id = case when it then settling_id else settled_id end,
        settling_id = case when it or settling_id = 0 then $8::bigint else settling_id end,
        settling_xid = case when it or settling_id = 0 then pg_snapshot_xmax(pg_current_snapshot()) else settling_xid end,
        settling_at = case when it or settling_id = 0 then clock_timestamp() else settling_at end
      from settles`,
    values: [
      size,
      note,
      nodes.map(({ level }) => level),
      nodes.map(({ index }) => index),
      nodes.map(({ hash }) => hash),
      isOver,
      isFull,
      lastId,
    ],
  });
}

/** Computes the hashes of a proof from the stored hashes. */
export async function readProofHashes(db: Database, proof: Proof): Promise<Buffer[]> {
  return proof.computeHashes(await readStoredHashes(db, proof.listRequiredRanges()));
}

/** Reads ranges of hashes: leaves from the log, inner nodes from `audit_nodes`. Both are append-only, so no lock is needed. */
async function readStoredHashes(db: Queryable, ranges: readonly StoredRange[]): Promise<StoredHashes> {
  if (ranges.length === 0) return new StoredHashes([]);
  const rows = await db.run<{ level: number; index: string; hash: Buffer }>({
    name: 'audit-hashes',
    text: `with run as (select * from unnest($1::int[], $2::bigint[], $3::bigint[]) as t(level, since, until))
      select r.level, l.index, l.leaf as hash from run r cross join lateral (
        select index, leaf from audit_log where index >= r.since and index < r.until) l
      where r.level = 0
      union all
      select r.level, n.index, n.hash from run r cross join lateral (
        select index, hash from audit_nodes where level = r.level and index >= r.since and index < r.until) n
      where r.level > 0`,
    values: [ranges.map(({ level }) => level), ranges.map(({ from }) => from), ranges.map(({ to }) => to)],
  });
  return new StoredHashes(rows.map(({ level, index, hash }) => ({ level, index: Number(index), hash })));
}

/** Reads the newest signed checkpoint. Checkpoints are append-only, so no lock is needed. */
export async function readNewestCheckpoint(db: Queryable): Promise<string | undefined> {
  const rows = await db.run<{ note: string }>({
    name: 'newest-checkpoint',
    text: 'select note from audit_checkpoints order by size desc limit 1',
    values: [],
  });
  return rows[0]?.note;
}

/**
 * Reads entries in order, `from` inclusive, `to` exclusive. Includes only the last checkpoint of every 1024 entries, because
 * verifying a signature takes as long as hashing a hundred entries. The log is append-only, so no lock is needed.
 */
export async function readEntries(db: Database, from: number, to: number): Promise<LoggedEntry[]> {
  const rows = await db.run<{ index: string; leaf: Buffer; entry: string; checkpoint: string | null }>({
    name: 'audit-entries',
    text: `select l.index, l.leaf, l.entry, c.note as checkpoint
      from audit_log l left join audit_checkpoints c on c.size = l.index + 1 and not exists (
        select 1 from audit_checkpoints d where d.size > l.index + 1 and d.size <= (l.index / 1024 + 1) * 1024)
      where l.index >= $1 and l.index < $2 order by l.index`,
    values: [from, to],
  });
  return rows.map((row) => ({ ...row, index: Number(row.index) }));
}

/** Finds the entry with this leaf hash; the first of equal ones. `index + 0` keeps the planner on the index of `leaf`. */
export async function findLeaf(db: Database, leaf: Buffer): Promise<{ index: number; entry: string } | undefined> {
  const rows = await db.run<{ index: string; entry: string }>({
    name: 'find-leaf',
    text: 'select index, entry from audit_log where leaf = $1 order by index + 0 limit 1',
    values: [leaf],
  });
  const [found] = rows;
  return found === undefined ? undefined : { index: Number(found.index), entry: found.entry };
}
