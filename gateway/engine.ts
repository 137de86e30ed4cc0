import { join } from 'node:path';
import type { Logger } from 'pino';
import { CheckpointFiles } from '../adapters/checkpoint-files.ts';
import { AdapterRegistry } from '../adapters/registry.ts';
import { WitnessClient } from '../adapters/witness-client.ts';
import type { Config } from './config.ts';
import { NoteSigner } from './domain/audit/signed-note.ts';
import type { Telemetry } from './domain/telemetry.ts';
import { Dispatch } from './flow/attempts/dispatch.ts';
import { Recovery } from './flow/attempts/recover.ts';
import { LogMonitor } from './flow/audit/log-monitor.ts';
import { Sequencer } from './flow/audit/sequencer.ts';
import { Claims } from './flow/calls/claims.ts';
import type { Services } from './flow/calls/execute-call.ts';
import { ReplayCache } from './flow/calls/replay-cache.ts';
import { type Context, KILL_POINTS, type KillPoint } from './flow/context.ts';
import { TaintCache } from './flow/controls/taint.ts';
import { McpImports } from './flow/mcp/imports.ts';
import { RollbackWorker } from './flow/sagas/rollback.ts';
import { deleteOldNotices } from './ledger/approvals/notice-outbox.ts';
import { handOverCalls } from './ledger/calls/call-ownership.ts';
import { CallStore } from './ledger/calls/calls.ts';
import { HistoryReader } from './ledger/calls/history.ts';
import { dropTombstones, eraseExpiredPayloads, eraseRunCheckpoints } from './ledger/calls/retention.ts';
import { ControlFlags } from './ledger/controls/control-flags.ts';
import { Database } from './ledger/db.ts';
import { ensureDeploymentId } from './ledger/deployment.ts';
import { deleteEndedProcesses, Lease } from './ledger/process-lease.ts';
import { UndoStore } from './ledger/sagas/undos.ts';
import type { PolicyStore } from './policy-keeper.ts';

export interface EngineOptions {
  readonly config: Pick<Config, 'database' | 'retention' | 'limits' | 'webhook' | 'dieAt' | 'dataDir' | 'audit'>;
  readonly url: string;
  readonly policies: PolicyStore;
  readonly sealingKey: Buffer;
  /** The key that signs the log, as PEM. */
  readonly auditKey: string;
  readonly log: Logger;
  readonly watch: Telemetry;
  /** Told of each commit of claims and outcomes: how many, and how many wait. */
  readonly onBatch: (size: number, waiting: number) => void;
}

/** Ledger, adapters and flow, wired: everything of a gateway but its front doors. */
export class Engine {
  readonly flow: Services;
  readonly #recovery: Recovery;
  readonly #rollbacks: RollbackWorker;
  readonly #sequencer: Sequencer;
  readonly #station: Context;
  readonly #sweeper: NodeJS.Timeout;

  private constructor(station: Context, key: NoteSigner, sweeper: NodeJS.Timeout) {
    this.#station = station;
    this.#sweeper = sweeper;
    const dispatch = new Dispatch(station);
    const claims = new Claims(station, dispatch);
    this.#recovery = new Recovery(station, dispatch, claims);
    this.#rollbacks = new RollbackWorker(station, dispatch, claims);
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
      const switches = new ControlFlags(db, lease, (error) =>
        log.warn({ err: String(error) }, 'the switches could not be read'),
      );
      const adapters = new AdapterRegistry((upstream) => switches.get(`breaker:${upstream}`) !== undefined, sealingKey);
      switches.onBreakerClosed((upstream) => adapters.resetBreaker(upstream));
      const finals = new ReplayCache(config.retention.payloadsMs);
      switches.onChange(() => finals.clear());
      await switches.start();
      adapters.applyPolicies(policies.current);
      const imports = new McpImports({ db, adapters, log }, policies.current);
      policies.onChange((changed) => {
        adapters.applyPolicies(changed);
        imports.replaceBase(changed);
      });
      await imports.start();
      const deployment = await ensureDeploymentId(db);
      const key = NoteSigner.fromPem(`oncegate/${deployment}`, auditKey);
      const station: Context = {
        db,
        calls: new CallStore(db, onBatch),
        undos: new UndoStore(db),
        finals,
        pasts: new HistoryReader(db),
        taints: new TaintCache(),
        lease,
        switches,
        logWatch: new LogMonitor({ db, lease, key, ...anchorsOf(config), log }),
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
      await station.logWatch.verify();
      await station.logWatch.requestCosignatures();
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
      const doubt = logWatch.findFault();
      return [
        ...(switches.canSend(lease.id) ? [] : ['the lease on the ledger is being taken anew']),
        ...(doubt === undefined ? [] : [doubt]),
      ];
    } catch (error) {
      return [error instanceof Error ? error.message : String(error)];
    }
  }

  /** The end is near: nobody waits any longer for what this process will not finish. */
  letGo(): void {
    this.flow.dispatch.beginShutdown();
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
      await handOverCalls(db, lease.id);
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
    witnesses: audit.witnesses.map((witness) => new WitnessClient(witness)),
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
      while ((await eraseExpiredPayloads(db, retention.payloadsMs)) >= 500);
      await eraseRunCheckpoints(db, retention.payloadsMs);
      if (retention.keysMs !== null) while ((await dropTombstones(db, retention.keysMs)) >= 500);
      while ((await deleteOldNotices(db, retention.payloadsMs, webhook === undefined)) >= 500);
      await deleteEndedProcesses(db);
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
function deathAt(dieAt: string | undefined): (point: KillPoint) => void {
  if (dieAt === undefined) return () => {};
  const [name, nth = '1'] = dieAt.split(':');
  if (!(KILL_POINTS as readonly string[]).includes(name ?? ''))
    throw new Error(`ONCEGATE_DIE_AT: ${name} is not one of ${KILL_POINTS.join(', ')}`);
  let left = Number(nth);
  return (point) => {
    if (point !== name) return;
    left -= 1;
    if (left === 0) process.kill(process.pid, 'SIGKILL');
  };
}
