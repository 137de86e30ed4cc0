import { randomUUID } from 'node:crypto';
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import type { Database } from './db.ts';

/** A process that has not renewed for this long is taken for dead; its calls go to others. */
export const LEASE_MS = 6_000;
const RENEW_EVERY_MS = 1_000;
/** Stop sending this long before the lease ends, so that the first byte never leaves after it. */
const SEND_MARGIN_MS = 500;

/**
 * The right of this process to send. It rests on a row in `processes` that is renewed every second; a process that was
 * paused, or cut off from PostgreSQL, loses it and must send nothing more under that name. The check is local and
 * asked right before the first byte: no statement, and no clock but this machine's own.
 */
export class Lease {
  readonly #db: Database;
  readonly #onError: (error: unknown) => void;
  #id = '';
  #validUntil = { monotonic: 0, wall: 0 };
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<void> | undefined;

  constructor(db: Database, onError: (error: unknown) => void) {
    this.#db = db;
    this.#onError = onError;
  }

  /** The name under which calls are claimed now. Changes when a lapsed lease is taken anew. */
  get id(): string {
    return this.#id;
  }

  /** Whether a call claimed under `owner` may still be sent by this process at this instant. */
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
    // The last attempt to take a new lease failed half-way.
    if (this.#id === '') return this.#register();
    const asked = { monotonic: performance.now(), wall: Date.now() };
    const rows = await this.#db.run<{ id: string }>({
      name: 'renew-lease',
      text: `update processes set lease_until = now() + $2 * interval '1 ms' where id = $1 and lease_until > now() and ended_at is null returning id`,
      values: [this.#id, LEASE_MS],
      hasFullTimeout: true,
    });
    if (rows.length === 1) this.#extend(asked);
    else await this.#replaceLapsed();
  }

  /** Nothing new is ever sent under the old name (`holds` compares it); what is on the wire may still arrive. */
  async #replaceLapsed(): Promise<void> {
    this.#id = '';
    await this.#register();
  }

  async #register(): Promise<void> {
    const id = randomUUID();
    const asked = { monotonic: performance.now(), wall: Date.now() };
    await this.#db.run({
      name: 'register-process',
      text: `insert into processes (id, host, pid, pid_started, lease_until) values ($1, $2, $3, $4, now() + $5 * interval '1 ms')`,
      values: [id, readHostIdentity(), process.pid, findStartTicks(process.pid) ?? '', LEASE_MS],
      hasFullTimeout: true,
    });
    this.#extend(asked);
    this.#id = id;
  }

  #extend(asked: { monotonic: number; wall: number }): void {
    const good = LEASE_MS - SEND_MARGIN_MS;
    this.#validUntil = { monotonic: asked.monotonic + good, wall: asked.wall + good };
  }

  /** On a clean end: whatever is still ours goes to others at once. */
  async end(): Promise<void> {
    clearInterval(this.#timer);
    await this.#renewing;
    const id = this.#id;
    this.#id = '';
    await endProcess(this.#db, id);
  }
}

async function endProcess(db: Database, id: string): Promise<void> {
  await db.run({
    name: 'end-process',
    text: `update processes set ended_at = coalesce(ended_at, now()), lease_until = least(lease_until, now()) where id = $1`,
    values: [id],
    hasFullTimeout: true,
  });
}

/**
 * Marks processes of this very host that are gone: their pid is free or belongs to a later process. A restart after a
 * kill then need not wait for the lease. Processes of other hosts are judged by their lease alone.
 */
export async function endDeadProcessesOnHost(db: Database, self: string): Promise<void> {
  const rows = await db.run<{ id: string; pid: number; pid_started: string }>({
    name: 'neighbours',
    text: `select id, pid, pid_started from processes where host = $1 and ended_at is null`,
    values: [readHostIdentity()],
  });
  for (const row of rows) {
    if (row.id !== self && row.pid_started !== '' && isProcessGone(row.pid, row.pid_started))
      await endProcess(db, row.id);
  }
}

/** Forgets processes that ended long ago and own nothing. */
export async function deleteEndedProcesses(db: Database): Promise<void> {
  await db.run({
    name: 'forget-processes',
    text: `delete from processes p where ended_at < now() - interval '1 day'
      and not exists (select 1 from open_calls o where o.owner = p.id)`,
    values: [],
  });
}

/** Boot and pid namespace: where a pid means the same thing. */
function readHostIdentity(): string {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return `${boot}/${readlinkSync('/proc/self/ns/pid')}`;
  } catch {
    return hostname();
  }
}

/** Only what the kernel says for sure: that there is no such process, that it has ended, or that the pid is another's. */
function isProcessGone(pid: number, started: string): boolean {
  try {
    const ticks = readStartTicks(pid);
    return ticks === undefined || ticks !== started;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return code === 'ENOENT' || code === 'ESRCH';
  }
}

/** When a process started, in the kernel's ticks: a reused pid differs. Undefined: no /proc here. */
function findStartTicks(pid: number): string | undefined {
  try {
    return readStartTicks(pid);
  } catch {
    return undefined;
  }
}

/** Undefined for a zombie: it has ended, and only its parent has not noticed yet. */
function readStartTicks(pid: number): string | undefined {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[19];
}
