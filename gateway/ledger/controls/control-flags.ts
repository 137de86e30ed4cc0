import { setTimeout as sleep } from 'node:timers/promises';
import { GatewayError } from '../../domain/errors.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import type { Database, Statement, Tx } from '../db.ts';
import type { Lease } from '../process-lease.ts';

/**
 * What a flag applies to. `all`, `agent:<name>` and `tool:<name>` are freezes. `breaker:<upstream>` is a breaker opened by hand.
 * `closed:<upstream>` keeps the time when a breaker was closed by hand, so that every process resets its counts. `call:<txn>`
 * recalls a step that was about to be sent when its saga was rolled back.
 */
export type ControlFlagScope =
  | 'all'
  | `agent:${string}`
  | `tool:${string}`
  | `breaker:${string}`
  | `closed:${string}`
  | `call:${string}`;

export interface ControlFlag {
  readonly scope: ControlFlagScope;
  readonly by: string;
  readonly reason: string;
  readonly at: Date;
}

const POLL_MS = 150;
const ACK_POLL_MS = 25;
/** Longer than a lease: a process that has not acknowledged by then has lost its right to send. */
const ACK_TIMEOUT_MS = 10_000;

/**
 * The control flags: freezes, breakers opened by hand, recalls. Each process keeps them in memory and polls for a new version
 * several times a second. A change returns when every process that may still send has acknowledged it. So a check costs a call
 * nothing, and no process misses a flag: a process that cannot poll loses its lease, and with it the right to send.
 */
export class ControlFlags {
  readonly #db: Database;
  readonly #lease: Lease;
  readonly #onError: (error: unknown) => void;
  #flags: ReadonlyMap<string, ControlFlag> = new Map();
  #acknowledged = { version: '', lease: '' };
  #timer: NodeJS.Timeout | undefined;
  #refreshing: Promise<void> | undefined;
  #breakerClosedListener: (upstream: string) => void = () => {};
  #changeListener: () => void = () => {};

  constructor(db: Database, lease: Lease, onError: (error: unknown) => void) {
    this.#db = db;
    this.#lease = lease;
    this.#onError = onError;
  }

  async start(): Promise<void> {
    await this.#refresh();
    this.#timer = setInterval(() => {
      this.#refreshOnce().catch(this.#onError);
    }, POLL_MS);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#refreshing?.catch(() => {});
  }

  onBreakerClosed(listener: (upstream: string) => void): void {
    this.#breakerClosedListener = listener;
  }

  /** The listener runs before this process acknowledges a change. */
  onChange(listener: () => void): void {
    this.#changeListener = listener;
  }

  get(scope: ControlFlagScope): ControlFlag | undefined {
    return this.#flags.get(scope);
  }

  list(): readonly ControlFlag[] {
    return [...this.#flags.values()];
  }

  /**
   * Whether this process may send under this lease: it holds the lease and has read the flags since it took it. A process that
   * slept through a freeze takes a new lease when it wakes, and must not send before it has read the flags.
   */
  canSend(owner: string): boolean {
    return this.#acknowledged.lease === owner && this.#lease.holds(owner);
  }

  /** Whether a rollback recalled this step while it was about to be sent. */
  isRecalled(txn: string): boolean {
    return this.#flags.size > 0 && this.#flags.has(`call:${txn}`);
  }

  /** Finds the freeze that applies to a call of this agent and tool. */
  findFreeze(agent: string, tool: string): ControlFlag | undefined {
    if (this.#flags.size === 0) return undefined;
    return this.#flags.get('all') ?? this.#flags.get(`agent:${agent}`) ?? this.#flags.get(`tool:${tool}`);
  }

  /**
   * Sets a flag and waits until every process has acknowledged it. The first setter's reason is kept: `on conflict do nothing`
   * makes a repeat, or a concurrent second setter, change nothing.
   */
  async set(scope: ControlFlagScope, by: string, reason: string, entry: string): Promise<void> {
    await this.#apply(
      {
        name: 'set-control-flag',
        text: 'insert into control_flags (scope, by, reason) values ($1, $2, $3) on conflict do nothing returning scope',
        values: [scope, by, reason],
      },
      entry,
    );
  }

  /**
   * Closes a breaker by hand: it is no longer held open, and every process resets its counts. Deleting one flag and writing the
   * other is one statement, so no process sees only one of the two.
   */
  async closeBreaker(upstream: string, by: string, reason: string, entry: string): Promise<void> {
    await this.#apply(
      {
        name: 'close-breaker',
        text: `with opened as (delete from control_flags where scope = 'breaker:' || $1)
          insert into control_flags (scope, by, reason) values ('closed:' || $1, $2, $3)
          on conflict (scope) do update set by = excluded.by, reason = excluded.reason, at = clock_timestamp()`,
        values: [upstream, by, reason],
      },
      entry,
    );
  }

  /** Clears a flag and waits until every process has acknowledged it. Clearing it twice is harmless. */
  async clear(scope: ControlFlagScope, entry: string): Promise<void> {
    await this.#apply(
      {
        name: 'clear-control-flag',
        text: 'delete from control_flags where scope = $1 returning scope',
        values: [scope],
      },
      entry,
    );
  }

  /** Raises the version without changing a flag. When this returns, no process caches erased data. */
  async broadcastChange(entry: string): Promise<void> {
    await this.#apply(undefined, entry);
  }

  async #apply(statement: Statement | undefined, entry: string): Promise<void> {
    const version = await this.#db.transaction(async (tx) => {
      const raised = await raiseVersion(tx);
      if (statement !== undefined) await tx.run(statement);
      await insertAuditEntry(tx, entry);
      return raised;
    });
    // A refresh that began before the commit may not have seen the change. Wait for it, then refresh again.
    await this.#refreshing?.catch(() => {});
    await this.#refreshOnce();
    await this.#awaitAcknowledgements(version);
  }

  async #awaitAcknowledgements(version: string): Promise<void> {
    const until = performance.now() + ACK_TIMEOUT_MS;
    for (;;) {
      if (!(await hasUnacknowledged(this.#db, version))) return;
      if (performance.now() > until)
        throw new GatewayError(
          'internal',
          'The change is in force, but not every replica has acknowledged it. Send the request again to wait for them.',
        );
      await sleep(ACK_POLL_MS);
    }
  }

  /** One refresh at a time: an older refresh that ends later must not overwrite a newer one. */
  #refreshOnce(): Promise<void> {
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = undefined;
    });
    return this.#refreshing;
  }

  async #refresh(): Promise<void> {
    const lease = this.#lease.id;
    // Read the version before the flags, so that this process never acknowledges a version whose flags it has not read.
    const version = await readVersion(this.#db);
    if (lease === '' || (version === this.#acknowledged.version && lease === this.#acknowledged.lease)) return;
    const rows = await readFlags(this.#db);
    const before = this.#flags;
    this.#flags = new Map(rows.map((row) => [row.scope, row]));
    for (const { scope, at } of rows) {
      const isNew = this.#acknowledged.version !== '' && before.get(scope)?.at.getTime() !== at.getTime();
      if (scope.startsWith('closed:') && isNew) this.#breakerClosedListener(scope.slice('closed:'.length));
    }
    this.#changeListener();
    // Acknowledges only after the flags are in force here.
    await acknowledgeVersion(this.#db, lease, version);
    this.#acknowledged = { version, lease };
  }
}

/** Raises the version. The row lock makes concurrent changes commit one after another, in the order of their versions. */
async function raiseVersion(tx: Tx): Promise<string> {
  const [row] = await tx.run<{ version: string }>({
    name: 'raise-flags-version',
    text: 'update control_flag_version set version = version + 1 returning version',
    values: [],
  });
  return row?.version ?? '0';
}

/** Whether a process that may still send has not acknowledged the version. A lapsed process cannot send, so it does not count. */
async function hasUnacknowledged(db: Database, version: string): Promise<boolean> {
  const rows = await db.run({
    name: 'find-unacknowledged',
    text: 'select id from processes where control_flags_seen < $1 and lease_until > now() and ended_at is null limit 1',
    values: [version],
  });
  return rows.length > 0;
}

/** Reads one row without locking: a version that commits later is found by the next poll. */
async function readVersion(db: Database): Promise<string> {
  const [row] = await db.run<{ version: string }>({
    name: 'read-flags-version',
    text: 'select version from control_flag_version',
    values: [],
  });
  return row?.version ?? '0';
}

/** Reads all flags in one snapshot, which includes every change up to the version that was read before. */
function readFlags(db: Database): Promise<readonly ControlFlag[]> {
  return db.run<ControlFlag>({
    name: 'read-flags',
    text: 'select scope, by, reason, at from control_flags',
    values: [],
  });
}

/** Records that this process has read the version. `greatest` keeps a late statement from lowering it. */
async function acknowledgeVersion(db: Database, lease: string, version: string): Promise<void> {
  await db.run({
    name: 'acknowledge-flags',
    text: 'update processes set control_flags_seen = greatest(control_flags_seen, $2) where id = $1',
    values: [lease, version],
  });
}
