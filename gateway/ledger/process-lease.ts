import { randomUUID } from 'node:crypto';
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import type { Database } from './db.ts';

/** A process that has not renewed its lease for this long counts as dead, and others take over its calls. */
export const LEASE_MS = 6_000;
const RENEW_EVERY_MS = 1_000;
/** The gateway stops sending this long before the lease ends, so that no first byte leaves after the end. */
const SEND_MARGIN_MS = 500;

interface ClockReading {
  readonly monotonic: number;
  readonly wall: number;
}

/**
 * The right of this process to send: a row of `processes` that is renewed every second. A process that was paused,
 * or cut off from PostgreSQL, loses the lease and sends nothing more under that id. `holds` runs right before the first byte:
 * it needs no statement, and compares only clocks of this machine.
 */
export class Lease {
  readonly #db: Database;
  readonly #onError: (error: unknown) => void;
  #id = '';
  #validUntil: ClockReading = { monotonic: 0, wall: 0 };
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<void> | undefined;

  constructor(db: Database, onError: (error: unknown) => void) {
    this.#db = db;
    this.#onError = onError;
  }

  /** The owner id of calls that this process claims. It changes when the process replaces a lapsed lease. */
  get id(): string {
    return this.#id;
  }

  /** Whether this process may still send a call that it claimed as `owner`. */
  holds(owner: string): boolean {
    if (owner !== this.#id) return false;
    return performance.now() < this.#validUntil.monotonic && Date.now() < this.#validUntil.wall;
  }

  async start(): Promise<void> {
    await this.#register();
    this.#timer = setInterval(() => this.#renewOnce(), RENEW_EVERY_MS);
    this.#timer.unref();
  }

  #renewOnce(): void {
    this.#renewing ??= this.#renew()
      .catch(this.#onError)
      .finally(() => {
        this.#renewing = undefined;
      });
  }

  async #renew(): Promise<void> {
    // The last attempt to replace a lapsed lease failed after it had dropped the old id.
    if (this.#id === '') return this.#register();
    const requestedAt = readClocks();
    if (await renewLease(this.#db, this.#id)) this.#extend(requestedAt);
    else await this.#replaceLapsed();
  }

  /** Drops the old id first: `holds` then refuses it, so nothing more is sent under it. Bytes on the wire may still arrive. */
  async #replaceLapsed(): Promise<void> {
    this.#id = '';
    await this.#register();
  }

  async #register(): Promise<void> {
    const id = randomUUID();
    const requestedAt = readClocks();
    await insertProcess(this.#db, id);
    this.#extend(requestedAt);
    this.#id = id;
  }

  /** Counts the lease from before the statement was sent. PostgreSQL counts from a later time, so this process always stops first. */
  #extend(requestedAt: ClockReading): void {
    const validMs = LEASE_MS - SEND_MARGIN_MS;
    this.#validUntil = { monotonic: requestedAt.monotonic + validMs, wall: requestedAt.wall + validMs };
  }

  /** Ends the lease at a clean shutdown, so that others take over the remaining calls at once. */
  async end(): Promise<void> {
    clearInterval(this.#timer);
    await this.#renewing;
    const id = this.#id;
    this.#id = '';
    await endProcess(this.#db, id);
  }
}

function readClocks(): ClockReading {
  return { monotonic: performance.now(), wall: Date.now() };
}

/**
 * Renews a lease that has not lapsed. Returns false for a lapsed one: others may have taken over its calls already, so it can
 * never become valid again. The conditions and the update are one statement, so no takeover comes in between.
 */
async function renewLease(db: Database, id: string): Promise<boolean> {
  const rows = await db.run<{ id: string }>({
    name: 'renew-lease',
    text: `update processes set lease_until = now() + $2 * interval '1 ms' where id = $1 and lease_until > now() and ended_at is null returning id`,
    values: [id, LEASE_MS],
    hasFullTimeout: true,
  });
  return rows.length === 1;
}

/** The last migration that no older replica may run beside. PostgreSQL refuses a lease to a replica that does not know it. */
const SCHEMA_VERSION = 20;

/** Creates the row of a new lease. The id is random, so no other process writes the same row. */
async function insertProcess(db: Database, id: string): Promise<void> {
  await db.run({
    name: 'register-process',
    text: `insert into processes (id, host, pid, pid_started, lease_until, schema_version) values ($1, $2, $3, $4, now() + $5 * interval '1 ms', $6)`,
    values: [id, readHostIdentity(), process.pid, findStartTicks(process.pid) ?? '', LEASE_MS, SCHEMA_VERSION],
    hasFullTimeout: true,
  });
}

/** Ends a lease now. Keeps the earliest end, so two replicas may end the same process. */
async function endProcess(db: Database, id: string): Promise<void> {
  await db.run({
    name: 'end-process',
    text: `update processes set ended_at = coalesce(ended_at, now()), lease_until = least(lease_until, now()) where id = $1`,
    values: [id],
    hasFullTimeout: true,
  });
}

/**
 * Ends the leases of dead processes of this host: their pid is free, or belongs to a later process. A restart after a kill then
 * need not wait for the lease to lapse. Processes of other hosts are judged by their lease alone.
 */
export async function endDeadProcessesOnHost(db: Database, self: string): Promise<void> {
  for (const { id, ...replica } of await listProcessesOnHost(db)) {
    if (id !== self && isReplicaGone(replica)) await endProcess(db, id);
  }
}

/** How a row of `processes` names an operating system process. */
export interface ReplicaIdentity {
  readonly host: string;
  readonly pid: number;
  /** Empty where the start time cannot be read. */
  readonly pidStarted: string;
}

/** True only if the replica ran on this host and its process has ended. */
export function isReplicaGone({ host, pid, pidStarted }: ReplicaIdentity): boolean {
  return host === readHostIdentity() && pidStarted !== '' && isProcessGone(pid, pidStarted);
}

/** Where a replica runs, for people: `on this host`, or with the start of the host's boot id. */
export function describeHost(host: string): string {
  const own = readHostIdentity();
  if (host === own) return 'on this host';
  const [boot = '', pidNamespace] = host.split('/');
  if (pidNamespace === undefined) return `on host ${host}`;
  return boot === own.split('/')[0] ? 'in another container of this host' : `on host ${boot.slice(0, 8)}`;
}

/** Reads without locking: a process that died once stays dead, so an outdated row does no harm. */
function listProcessesOnHost(db: Database) {
  return db.run<ReplicaIdentity & { id: string }>({
    name: 'list-processes-on-host',
    text: `select id, host, pid, pid_started as "pidStarted" from processes where host = $1 and ended_at is null`,
    values: [readHostIdentity()],
  });
}

/** Deletes processes that ended a day ago and own no call. An ended process never claims again, so none gains a call. */
export async function deleteEndedProcesses(db: Database): Promise<void> {
  await db.run({
    name: 'delete-ended-processes',
    text: `delete from processes p where ended_at < now() - interval '1 day'
      and not exists (select 1 from open_calls o where o.owner = p.id)`,
    values: [],
  });
}

/** Names the boot and the pid namespace: within both, a pid names one process. */
function readHostIdentity(): string {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return `${boot}/${readlinkSync('/proc/self/ns/pid')}`;
  } catch {
    return hostname();
  }
}

/** True only if the kernel says so: the process does not exist, has ended, or its pid belongs to another process. */
function isProcessGone(pid: number, started: string): boolean {
  try {
    const ticks = readStartTicks(pid);
    return ticks === undefined || ticks !== started;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return code === 'ENOENT' || code === 'ESRCH';
  }
}

/** The start time of a process in kernel ticks, which tells a reused pid apart. Undefined without /proc. */
function findStartTicks(pid: number): string | undefined {
  try {
    return readStartTicks(pid);
  } catch {
    return undefined;
  }
}

/** Undefined for a zombie, which has ended although its parent has not collected it yet. */
function readStartTicks(pid: number): string | undefined {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[19];
}
