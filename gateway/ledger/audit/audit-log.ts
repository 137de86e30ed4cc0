import {
  Frontier,
  HASH_BYTES,
  type Proof,
  type StoredHash,
  StoredHashes,
  type StoredRange,
} from '../../domain/audit/merkle.ts';
import type { Database, Queryable, Tx } from '../db.ts';

/** Small enough for one statement well within its time, large enough that its commit costs little for each leaf. */
export const MAX_LEAVES_PER_BATCH = 2_000;

export interface SealedBatch {
  readonly size: number;
  readonly note: string;
  /** There may be more that waits. */
  readonly isFull: boolean;
}

export interface LoggedEntry {
  readonly index: number;
  readonly leaf: Buffer;
  readonly entry: string;
  /** The checkpoint that was signed when this was the last entry; not with each. */
  readonly checkpoint: string | null;
}

/** The log as the database has it before anything is added: what its hashes give, and what was signed last. */
export interface LogTip {
  readonly size: number;
  readonly root: Buffer;
  readonly note: string | undefined;
}

/** Signs the log with its new entries, or throws because this is not the log that it knows. */
export type SignCheckpoint = (before: LogTip, size: number, root: Buffer) => Promise<string>;

interface HeadRow {
  readonly size: string;
  readonly settled_id: string;
  readonly is_over: boolean;
}

/** Whether leaves wait, and the last checkpoint is older than this. A clock that was set back is no reason to wait. */
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
 * Gives waiting leaves their place and signs the tree with them in it, all in one transaction: there is never a leaf in its
 * place without a checkpoint over it, and a crash anywhere leaves it where it was. Whoever holds the head does it; others
 * go away at once (undefined). Ids are not in the order of commits, so it takes what it sees and counts for itself.
 */
export function sealLeaves(
  db: Database,
  sign: SignCheckpoint,
  most: number = MAX_LEAVES_PER_BATCH,
): Promise<SealedBatch | undefined> {
  return db.transaction(async (tx) => {
    const head = await lockHead(tx);
    if (head === undefined) return undefined;
    const before = Number(head.size);
    const { leaves, lastId } = await appendLeaves(tx, before, head.settled_id, most);
    if (leaves.length === 0) return undefined;
    const frontier = Frontier.restore(before, await readStoredHashes(tx, Frontier.listRequiredRanges(before)));
    const tip = { size: before, root: frontier.computeRoot(), note: await readNewestCheckpoint(tx) };
    const nodes: StoredHash[] = [];
    for (const leaf of leaves) frontier.append(leaf, (node) => nodes.push(node));
    const { size } = frontier;
    const note = await sign(tip, size, frontier.computeRoot());
    const isFull = leaves.length === most;
    await updateHead(tx, { size, note, nodes, lastId, isOver: head.is_over, isFull });
    return { size, note, isFull };
  });
}

async function lockHead(tx: Tx): Promise<HeadRow | undefined> {
  const rows = await tx.run<HeadRow>({
    name: 'lock-audit-head',
    text: `select size, settled_id, set_config('oncegate.sequencing', 'on', true),
        settling_at < clock_timestamp() - interval '1 minute' and (
          settling_xid <= pg_snapshot_xmin(pg_current_snapshot())
          -- Of another server, which this database was restored from: nothing of that time is still open.
          or settling_xid > pg_snapshot_xmax(pg_current_snapshot())) as is_over
      from audit_head for update skip locked`,
    values: [],
  });
  return rows[0];
}

/** Moves leaves out of the queue, the oldest first; PostgreSQL hashes them, so that their text need not travel. */
async function appendLeaves(tx: Tx, size: number, settledId: string, most: number) {
  const [placed] = await tx.run<{ leaves: Buffer | null; last_id: string | null }>({
    name: 'place-leaves',
    text: `with taken as (
        delete from audit_queue where ctid = any (array(select ctid from audit_queue where id > $2 order by id limit $3))
        returning id, entry
      ), placed as (
        insert into audit_log (index, leaf, entry)
        select $1::bigint + row_number() over (order by id) - 1, sha256('\\x00'::bytea || convert_to(entry, 'UTF8')), entry from taken
        returning index, leaf
      )
      select (select string_agg(leaf, ''::bytea order by index) from placed) as leaves, (select max(id) from taken) as last_id`,
    values: [size, settledId, most],
  });
  return { leaves: splitHashes(placed?.leaves ?? null), lastId: placed?.last_id ?? '0' };
}

/** They come as one value: a row for each would take as long to read as the rest of sealing it. */
function splitHashes(bytes: Buffer | null): Buffer[] {
  const count = bytes === null ? 0 : bytes.length / HASH_BYTES;
  return Array.from({ length: count }, (_, i) => (bytes as Buffer).subarray(i * HASH_BYTES, (i + 1) * HASH_BYTES));
}

interface HeadUpdate {
  readonly size: number;
  readonly note: string;
  readonly nodes: readonly StoredHash[];
  readonly lastId: string;
  /** Every transaction is over that may have drawn an id up to the one that is to be settled next. */
  readonly isOver: boolean;
  readonly isFull: boolean;
}

/** The oldest leaves were taken first: all up to `lastId` that could be seen, and all there were if the batch was not full. */
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

/** The hashes of a proof, as the database has them. */
export async function readProofHashes(db: Database, proof: Proof): Promise<Buffer[]> {
  return proof.computeHashes(await readStoredHashes(db, proof.listRequiredRanges()));
}

async function readStoredHashes(on: Queryable, runs: readonly StoredRange[]): Promise<StoredHashes> {
  if (runs.length === 0) return new StoredHashes([]);
  const rows = await on.run<{ level: number; index: string; hash: Buffer }>({
    name: 'audit-hashes',
    text: `with run as (select * from unnest($1::int[], $2::bigint[], $3::bigint[]) as t(level, since, until))
      select r.level, l.index, l.leaf as hash from run r cross join lateral (
        select index, leaf from audit_log where index >= r.since and index < r.until) l
      where r.level = 0
      union all
      select r.level, n.index, n.hash from run r cross join lateral (
        select index, hash from audit_nodes where level = r.level and index >= r.since and index < r.until) n
      where r.level > 0`,
    values: [runs.map(({ level }) => level), runs.map(({ from }) => from), runs.map(({ to }) => to)],
  });
  return new StoredHashes(rows.map(({ level, index, hash }) => ({ level, index: Number(index), hash })));
}

/** The newest checkpoint that was signed. */
export async function readNewestCheckpoint(on: Queryable): Promise<string | undefined> {
  const rows = await on.run<{ note: string }>({
    name: 'newest-checkpoint',
    text: 'select note from audit_checkpoints order by size desc limit 1',
    values: [],
  });
  return rows[0]?.note;
}

/**
 * Entries in their order, `from` inclusive, `to` exclusive. Of the checkpoints in every 1024 entries only the last goes along:
 * to verify a signature takes as long as to hash a hundred entries.
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

/** Where an entry with this leaf hash stands; the first, should there be equal ones. */
export async function findLeaf(db: Database, leaf: Buffer): Promise<{ index: number; entry: string } | undefined> {
  const rows = await db.run<{ index: string; entry: string }>({
    name: 'find-leaf',
    text: 'select index, entry from audit_log where leaf = $1 order by index + 0 limit 1',
    values: [leaf],
  });
  const [found] = rows;
  return found === undefined ? undefined : { index: Number(found.index), entry: found.entry };
}
