import type { Database } from '../db.ts';

/** The pinned definition of an imported tool, and the changed definition that the server offers now, if any. */
export interface Pin {
  readonly upstream: string;
  /** The name of the tool on its server. */
  readonly tool: string;
  readonly digest: Buffer;
  /** The definition as JSON text. */
  readonly definition: string;
  readonly pinnedAt: Date;
  readonly acceptedBy: string | null;
  readonly offeredDigest: Buffer | null;
  readonly offered: string | null;
  readonly offeredAt: Date | null;
}

/** The definition of a tool that a server offers now. */
export interface PinOffer {
  readonly tool: string;
  readonly digest: Buffer;
  readonly definition: string;
  /** The audit entries for a tool that is seen for the first time, and for one that differs from its pin. */
  readonly pinnedEntry: string;
  readonly changedEntry: string;
}

const PIN_COLUMNS = `upstream, tool, digest, definition, pinned_at as "pinnedAt", accepted_by as "acceptedBy",
  offered_digest as "offeredDigest", offered, offered_at as "offeredAt"`;

/** A version that changes when any pin or offer changes, so that a process can notice a change without reading the definitions. */
export async function readPinsVersion(db: Database): Promise<string> {
  const [row] = await db.run<{ version: string | null }>({
    name: 'pins-version',
    text: `select md5(string_agg(upstream || chr(10) || tool || encode(digest, 'hex') || coalesce(encode(offered_digest, 'hex'), ''),
        chr(10) order by upstream, tool)) as version from pins`,
    values: [],
  });
  return row?.version ?? '';
}

/** Reads all pins in one snapshot. */
export async function readPins(db: Database): Promise<readonly Pin[]> {
  return db.run<Pin>({
    name: 'read-pins',
    text: `select ${PIN_COLUMNS} from pins order by upstream, tool`,
    values: [],
  });
}

/**
 * Pins new tools and records changed ones. A change is recorded once, and removed when the server reverts it. The rows are written
 * in order of tool, so two replicas that list the same server never wait in a circle; the second finds nothing to change.
 */
export async function recordOffers(db: Database, upstream: string, offers: readonly PinOffer[]): Promise<void> {
  if (offers.length === 0) return;
  await db.run({
    name: 'record-offers',
    text: `with offers as (
        select * from unnest($2::text[], $3::bytea[], $4::text[], $5::text[], $6::text[])
          as o (tool, digest, definition, pinned, changed)
      ), pinned as (
        insert into pins (upstream, tool, digest, definition)
        select $1, tool, digest, definition from offers order by tool
        on conflict (upstream, tool) do update
          set offered_digest = case when pins.digest = excluded.digest then null else excluded.digest end,
              offered = case when pins.digest = excluded.digest then null else excluded.definition end,
              offered_at = case when pins.digest = excluded.digest then null else now() end
          where coalesce(pins.offered_digest, pins.digest) <> excluded.digest
        returning tool, offered_digest
      )
      insert into audit_queue (entry)
      select case when p.offered_digest is null then o.pinned else o.changed end
        from pinned p join offers o using (tool)`,
    values: [
      upstream,
      offers.map(({ tool }) => tool),
      offers.map(({ digest }) => digest),
      offers.map(({ definition }) => definition),
      offers.map(({ pinnedEntry: pinned }) => pinned),
      offers.map(({ changedEntry: changed }) => changed),
    ],
  });
}

/**
 * Accepts the offered definition that a person has seen. The condition on its digest refuses an offer that changed meanwhile, and
 * lets only one of two people accept it.
 */
export async function acceptOffer(
  db: Database,
  { upstream, tool }: Pick<Pin, 'upstream' | 'tool'>,
  digest: Buffer,
  person: string,
  entry: string,
): Promise<boolean> {
  const rows = await db.run({
    name: 'accept-offer',
    text: `with accepted as (
        update pins set digest = offered_digest, definition = offered, pinned_at = now(), accepted_by = $4,
            offered_digest = null, offered = null, offered_at = null
          where upstream = $1 and tool = $2 and offered_digest = $3
        returning tool
      ), logged as (insert into audit_queue (entry) select $5 from accepted)
      select tool from accepted`,
    values: [upstream, tool, digest, person, entry],
  });
  return rows.length > 0;
}
