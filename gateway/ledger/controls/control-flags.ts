import { setTimeout as sleep } from 'node:timers/promises';
import { GatewayError } from '../../domain/errors.ts';
import type { Database, Statement } from '../db.ts';
import type { Lease } from '../process-lease.ts';

/**
 * `all`, `agent:<name>`, `tool:<name>` are frozen; `breaker:<upstream>` is opened by hand, and `closed:<upstream>` keeps when
 * it was last closed by hand, so that every process forgets what it had counted. `call:<txn>` is a step that was about to be
 * sent when its saga was rolled back.
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
/** Longer than a lease: by then a process that still has not looked has lost its right to send. */
const ACK_TIMEOUT_MS = 10_000;

/**
 * The switches that people throw. Each process keeps them in memory and looks for a new version several times a second;
 * whoever throws one is answered when every process that may still send has said that it saw it. Checking costs a call
 * nothing, and no process can have missed it: one that cannot look loses its lease, and with it the right to send.
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

  /** Heard before this process says that it saw a change. */
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
   * Whether this process may send under that lease at all: it holds it, and has looked at the switches since it took it.
   * A process that slept through a freeze takes a new lease when it wakes, and must not use it before it has looked.
   */
  canSend(owner: string): boolean {
    return this.#acknowledged.lease === owner && this.#lease.holds(owner);
  }

  /** Whether a step was called back while it was about to be sent. */
  isRecalled(txn: string): boolean {
    return this.#flags.size > 0 && this.#flags.has(`call:${txn}`);
  }

  /** What freezes a call of this agent and tool, if anything does. */
  findFreeze(agent: string, tool: string): ControlFlag | undefined {
    if (this.#flags.size === 0) return undefined;
    return this.#flags.get('all') ?? this.#flags.get(`agent:${agent}`) ?? this.#flags.get(`tool:${tool}`);
  }

  /** On, and every process knows. Again is fine and keeps the first reason. */
  async set(scope: ControlFlagScope, by: string, reason: string, entry: string): Promise<void> {
    await this.#apply(
      {
        name: 'throw-switch',
        text: 'insert into switches (scope, by, reason) values ($1, $2, $3) on conflict do nothing returning scope',
        values: [scope, by, reason],
      },
      entry,
    );
  }

  /** A breaker is closed by hand: no longer held open, and what was counted is forgotten everywhere. */
  async closeBreaker(upstream: string, by: string, reason: string, entry: string): Promise<void> {
    await this.#apply(
      {
        name: 'close-breaker',
        text: `with opened as (delete from switches where scope = 'breaker:' || $1)
          insert into switches (scope, by, reason) values ('closed:' || $1, $2, $3)
          on conflict (scope) do update set by = excluded.by, reason = excluded.reason, at = clock_timestamp()`,
        values: [upstream, by, reason],
      },
      entry,
    );
  }

  /** Off again. */
  async clear(scope: ControlFlagScope, entry: string): Promise<void> {
    await this.#apply(
      { name: 'release-switch', text: 'delete from switches where scope = $1 returning scope', values: [scope] },
      entry,
    );
  }

  /** No switch, but something that processes may remember is gone: when this returns, all of them have forgotten it. */
  async broadcastChange(entry: string): Promise<void> {
    await this.#apply(undefined, entry);
  }

  async #apply(statement: Statement | undefined, entry: string): Promise<void> {
    const version = await this.#db.transaction(async (tx) => {
      const [now] = await tx.run<{ version: string }>({
        name: 'bump-switches',
        text: 'update switch_version set version = version + 1 returning version',
        values: [],
      });
      if (statement !== undefined) await tx.run(statement);
      await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
      return now?.version ?? '0';
    });
    // One that began before the change may not have seen it.
    await this.#refreshing?.catch(() => {});
    await this.#refreshOnce();
    await this.#awaitAcknowledgements(version);
  }

  async #awaitAcknowledgements(version: string): Promise<void> {
    const until = performance.now() + ACK_TIMEOUT_MS;
    for (;;) {
      const behind = await this.#db.run({
        name: 'who-has-not-seen',
        text: 'select id from processes where switches_seen < $1 and lease_until > now() and ended_at is null limit 1',
        values: [version],
      });
      if (behind.length === 0) return;
      if (performance.now() > until)
        throw new GatewayError(
          'internal',
          'The switch is thrown, but not every replica has said that it saw it. Ask again.',
        );
      await sleep(ACK_POLL_MS);
    }
  }

  /** One at a time: an older look that ends later must not undo what a newer one saw. */
  #refreshOnce(): Promise<void> {
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = undefined;
    });
    return this.#refreshing;
  }

  async #refresh(): Promise<void> {
    const lease = this.#lease.id;
    const [current] = await this.#db.run<{ version: string }>({
      name: 'switch-version',
      text: 'select version from switch_version',
      values: [],
    });
    const version = current?.version ?? '0';
    if (lease === '' || (version === this.#acknowledged.version && lease === this.#acknowledged.lease)) return;
    const rows = await this.#db.run<ControlFlag>({
      name: 'switches',
      text: 'select scope, by, reason, at from switches',
      values: [],
    });
    const before = this.#flags;
    this.#flags = new Map(rows.map((row) => [row.scope, row]));
    for (const { scope, at } of rows) {
      const isNews = this.#acknowledged.version !== '' && before.get(scope)?.at.getTime() !== at.getTime();
      if (scope.startsWith('closed:') && isNews) this.#breakerClosedListener(scope.slice('closed:'.length));
    }
    this.#changeListener();
    // Said only after it is in force here. A version read before the switches can only be too old, never too new.
    await this.#db.run({
      name: 'saw-switches',
      text: 'update processes set switches_seen = greatest(switches_seen, $2) where id = $1',
      values: [lease, version],
    });
    this.#acknowledged = { version, lease };
  }
}
