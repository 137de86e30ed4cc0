import { join } from 'node:path';
import type { Logger } from 'pino';
import { CheckpointFiles } from '../adapters/checkpoint-files.ts';
import { Registry } from '../adapters/registry.ts';
import { Witness } from '../adapters/witness.ts';
import type { Config } from './config.ts';
import { NoteKey } from './domain/signed-note.ts';
import type { Watch } from './domain/watch.ts';
import type { Flow } from './flow/call-tool.ts';
import { Claims } from './flow/claims.ts';
import { Dispatch } from './flow/dispatch.ts';
import { KnownTaints } from './flow/exposure.ts';
import { Finals } from './flow/finals.ts';
import { Imports } from './flow/imports.ts';
import { LogWatch } from './flow/log-watch.ts';
import { Recovery } from './flow/recover.ts';
import { Rollbacks } from './flow/roll-back.ts';
import { Sequencer } from './flow/sequence.ts';
import { POINTS, type Point, type Station } from './flow/station.ts';
import { Calls } from './ledger/calls.ts';
import { handOver } from './ledger/custody.ts';
import { Database } from './ledger/db.ts';
import { deploymentId } from './ledger/deployment.ts';
import { Pasts } from './ledger/history.ts';
import { forgetNotices } from './ledger/notices.ts';
import { forgetEndedProcesses, Lease } from './ledger/processes.ts';
import { dropTombstones, erasePayloads, forgetCheckpoints } from './ledger/retention.ts';
import { Switches } from './ledger/switches.ts';
import { Undos } from './ledger/undos.ts';
import type { PolicyKeeper } from './policy-keeper.ts';

export interface EngineOptions {
  readonly config: Pick<Config, 'database' | 'retention' | 'limits' | 'webhook' | 'dieAt' | 'dataDir' | 'audit'>;
  readonly url: string;
  readonly policies: PolicyKeeper;
  readonly sealingKey: Buffer;
  /** The key that signs the log, as PEM. */
  readonly auditKey: string;
  readonly log: Logger;
  readonly watch: Watch;
  /** Told of each commit of claims and outcomes: how many, and how many wait. */
  readonly onBatch: (size: number, waiting: number) => void;
}

/** Ledger, adapters and flow, wired: everything of a gateway but its front doors. */
export class Engine {
  readonly flow: Flow;
  readonly #recovery: Recovery;
  readonly #rollbacks: Rollbacks;
  readonly #sequencer: Sequencer;
  readonly #station: Station;
  readonly #sweeper: NodeJS.Timeout;

  private constructor(station: Station, key: NoteKey, sweeper: NodeJS.Timeout) {
    this.#station = station;
    this.#sweeper = sweeper;
    const dispatch = new Dispatch(station);
    const claims = new Claims(station, dispatch);
    this.#recovery = new Recovery(station, dispatch, claims);
    this.#rollbacks = new Rollbacks(station, dispatch, claims);
    this.#sequencer = new Sequencer(station, key, station.logWatch);
    this.flow = {
      station,
      dispatch,
      claims,
      recovery: this.#recovery,
      rollbacks: this.#rollbacks,
      sequencer: this.#sequencer,
    };
  }

  static async start(options: EngineOptions): Promise<Engine> {
    const { config, url, policies, sealingKey, auditKey, log, watch, onBatch } = options;
    const db = new Database(url, { max: config.database.pool, applicationName: 'oncegate' });
    try {
      const lease = new Lease(db, (error) => log.warn({ err: String(error) }, 'the lease could not be renewed'));
      await lease.start();
      const switches = new Switches(db, lease, (error) =>
        log.warn({ err: String(error) }, 'the switches could not be read'),
      );
      const adapters = new Registry((upstream) => switches.get(`breaker:${upstream}`) !== undefined, sealingKey);
      switches.onClosed((upstream) => adapters.reset(upstream));
      const finals = new Finals(config.retention.payloadsMs);
      switches.onNews(() => finals.clear());
      await switches.start();
      adapters.use(policies.current);
      const imports = new Imports({ db, adapters, log }, policies.current);
      policies.onChange((changed) => {
        adapters.use(changed);
        imports.use(changed);
      });
      await imports.start();
      const deployment = await deploymentId(db);
      const key = NoteKey.fromPem(`oncegate/${deployment}`, auditKey);
      const station: Station = {
        db,
        calls: new Calls(db, onBatch),
        undos: new Undos(db),
        finals,
        pasts: new Pasts(db),
        taints: new KnownTaints(),
        lease,
        switches,
        logWatch: new LogWatch({ db, lease, key, ...anchorsOf(config), log }),
        adapters,
        policies: () => imports.current,
        imports,
        deployment,
        sealingKey,
        mostPending: config.limits.pendingApprovals,
        log,
        watch,
        reach: deathAt(config.dieAt),
      };
      // Before anything could be sent: whether this is the database it was.
      await station.logWatch.look();
      await station.logWatch.show();
      return new Engine(station, key, sweep(db, config, log));
    } catch (error) {
      await db.close();
      throw error;
    }
  }

  recover(): void {
    this.#recovery.start();
    this.#rollbacks.start();
    this.#sequencer.start();
  }

  warnings(): string[] {
    return [...this.#station.logWatch.warnings(), ...this.#sequencer.warnings()];
  }

  async troubles(): Promise<string[]> {
    const { db, lease, switches, logWatch } = this.#station;
    try {
      await db.run({ name: 'ping', text: 'select 1', values: [] });
      const doubt = logWatch.doubt();
      return [
        ...(switches.inForce(lease.id) ? [] : ['the lease on the ledger is being taken anew']),
        ...(doubt === undefined ? [] : [doubt]),
      ];
    } catch (error) {
      return [error instanceof Error ? error.message : String(error)];
    }
  }

  /** The end is near: nobody waits any longer for what this process will not finish. */
  letGo(): void {
    this.flow.dispatch.letGo();
  }

  /** In-flight calls are settled; what waits for its next attempt is handed to others; then everything is let go. */
  async stop(drainMs: number): Promise<void> {
    const { db, lease, adapters, log } = this.#station;
    clearInterval(this.#sweeper);
    this.#station.imports.stop();
    await this.#recovery.stop();
    await this.#rollbacks.stop();
    await this.flow.dispatch.drain(drainMs);
    // To the last byte: what is frozen while this process drains is not sent by it either.
    await this.#station.switches.stop();
    await this.#sequencer.stop();
    try {
      await handOver(db, lease.id);
      await lease.end();
    } catch (error) {
      log.warn({ err: String(error) }, 'the ledger could not be told of the end; others wait for the lease');
    }
    await adapters.close();
    await db.close();
  }
}

/** Checkpoints are always kept in the data directory; the operator may name further places, which others keep. */
function anchorsOf({ dataDir, audit }: Pick<Config, 'dataDir' | 'audit'>) {
  const directories = [join(dataDir, 'checkpoints'), ...audit.directories];
  return {
    files: directories.map((directory) => new CheckpointFiles(directory)),
    witnesses: audit.witnesses.map((witness) => new Witness(witness)),
  };
}

function sweep(
  db: Database,
  { retention, webhook }: Pick<Config, 'retention' | 'webhook'>,
  log: Logger,
): NodeJS.Timeout {
  const everyMs = Math.min(60_000, Math.max(250, retention.payloadsMs / 4));
  let running = false;
  const timer = setInterval(async () => {
    if (running) return;
    running = true;
    try {
      while ((await erasePayloads(db, retention.payloadsMs)) >= 500);
      await forgetCheckpoints(db, retention.payloadsMs);
      if (retention.keysMs !== null) while ((await dropTombstones(db, retention.keysMs)) >= 500);
      while ((await forgetNotices(db, retention.payloadsMs, webhook === undefined)) >= 500);
      await forgetEndedProcesses(db);
    } catch (error) {
      log.warn({ err: String(error) }, 'the retention sweep will try again');
    } finally {
      running = false;
    }
  }, everyMs);
  timer.unref();
  return timer;
}

/** `sending:2` kills this process the second time a call reaches that point. Only the fault tests ask for it. */
function deathAt(dieAt: string | undefined): (point: Point) => void {
  if (dieAt === undefined) return () => {};
  const [name, nth = '1'] = dieAt.split(':');
  if (!(POINTS as readonly string[]).includes(name ?? ''))
    throw new Error(`ONCEGATE_DIE_AT: ${name} is not one of ${POINTS.join(', ')}`);
  let left = Number(nth);
  return (point) => {
    if (point !== name) return;
    left -= 1;
    if (left === 0) process.kill(process.pid, 'SIGKILL');
  };
}
