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
import type { PolicyStore } from './policy-store.ts';

export interface EngineOptions {
  readonly config: Pick<Config, 'database' | 'retention' | 'limits' | 'webhook' | 'dieAt' | 'dataDir' | 'audit'>;
  readonly url: string;
  readonly policies: PolicyStore;
  readonly sealingKey: Buffer;
  /** The key that signs the log, as PEM. */
  readonly auditKey: string;
  readonly log: Logger;
  readonly telemetry: Telemetry;
  /** Called after each group commit, with its size and the number of waiting writes. */
  readonly onBatch: (size: number, waiting: number) => void;
}

/** Ledger, adapters and use cases, wired together: the gateway without HTTP. */
export class Engine {
  readonly services: Services;
  readonly #recovery: Recovery;
  readonly #rollbacks: RollbackWorker;
  readonly #sequencer: Sequencer;
  readonly #context: Context;
  readonly #sweeper: NodeJS.Timeout;

  private constructor(context: Context, key: NoteSigner, sweeper: NodeJS.Timeout) {
    this.#context = context;
    this.#sweeper = sweeper;
    const dispatch = new Dispatch(context);
    const claims = new Claims(context, dispatch);
    this.#recovery = new Recovery(context, dispatch, claims);
    this.#rollbacks = new RollbackWorker(context, dispatch, claims);
    this.#sequencer = new Sequencer(context, key, context.logMonitor);
    this.services = {
      ctx: context,
      dispatch,
      claims,
      recovery: this.#recovery,
      rollbacks: this.#rollbacks,
      sequencer: this.#sequencer,
    };
  }

  static async start(options: EngineOptions): Promise<Engine> {
    const { config, url, policies, sealingKey, auditKey, log, telemetry, onBatch } = options;
    const db = new Database(url, { max: config.database.pool, applicationName: 'oncegate' });
    try {
      const lease = new Lease(db, (error) => log.warn({ err: String(error) }, 'The lease could not be renewed.'));
      await lease.start();
      const controlFlags = new ControlFlags(db, lease, (error) =>
        log.warn({ err: String(error) }, 'The control flags could not be read.'),
      );
      const adapters = new AdapterRegistry(
        (upstream) => controlFlags.get(`breaker:${upstream}`) !== undefined,
        sealingKey,
      );
      controlFlags.onBreakerClosed((upstream) => adapters.resetBreaker(upstream));
      const replayCache = new ReplayCache(config.retention.payloadsMs);
      controlFlags.onChange(() => replayCache.clear());
      await controlFlags.start();
      adapters.applyPolicies(policies.current);
      const imports = new McpImports({ db, adapters, log }, policies.current);
      policies.onChange((changed) => {
        adapters.applyPolicies(changed);
        imports.replaceBase(changed);
      });
      await imports.start();
      const deployment = await ensureDeploymentId(db);
      const key = NoteSigner.fromPem(`oncegate/${deployment}`, auditKey);
      const context: Context = {
        db,
        calls: new CallStore(db, onBatch),
        undos: new UndoStore(db),
        replayCache,
        historyReader: new HistoryReader(db),
        taintCache: new TaintCache(),
        lease,
        controlFlags,
        logMonitor: new LogMonitor({ db, lease, key, ...buildAnchors(config), log }),
        adapters,
        policies: () => imports.current,
        imports,
        deployment,
        sealingKey,
        maxPendingApprovals: config.limits.pendingApprovals,
        log,
        telemetry,
        reachKillPoint: buildKillPoint(config.dieAt),
      };
      // Check before the first send that the database was not replaced or rolled back.
      await context.logMonitor.verify();
      await context.logMonitor.requestCosignatures();
      return new Engine(context, key, startRetentionSweep(db, config, log));
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

  listWarnings(): string[] {
    return [...this.#context.logMonitor.warnings(), ...this.#sequencer.warnings()];
  }

  async findTroubles(): Promise<string[]> {
    const { db, lease, controlFlags, logMonitor } = this.#context;
    try {
      await db.run({ name: 'ping', text: 'select 1', values: [] });
      const doubt = logMonitor.findFault();
      return [
        ...(controlFlags.canSend(lease.id) ? [] : ['this process has no lease on the ledger, and is taking a new one']),
        ...(doubt === undefined ? [] : [doubt]),
      ];
    } catch (error) {
      return [error instanceof Error ? error.message : String(error)];
    }
  }

  /** Answers waiting callers whose calls this process will not finish. */
  beginShutdown(): void {
    this.services.dispatch.beginShutdown();
  }

  /** Settles calls in flight, hands waiting calls to other replicas, and closes everything. */
  async stop(drainMs: number): Promise<void> {
    const { db, lease, adapters, log } = this.#context;
    clearInterval(this.#sweeper);
    this.#context.imports.stop();
    await this.#recovery.stop();
    await this.#rollbacks.stop();
    await this.services.dispatch.drain(drainMs);
    // Control flags stop after the drain, because a freeze must also hold for calls that drain.
    await this.#context.controlFlags.stop();
    await this.#sequencer.stop();
    try {
      await handOverCalls(db, lease.id);
      await lease.end();
    } catch (error) {
      log.warn({ err: String(error) }, 'The lease could not be ended; other replicas take over when it lapses.');
    }
    await adapters.close();
    await db.close();
  }
}

/** The places that keep the newest checkpoint: always the data directory, and those in the configuration. */
function buildAnchors({ dataDir, audit }: Pick<Config, 'dataDir' | 'audit'>) {
  const directories = [join(dataDir, 'checkpoints'), ...audit.directories];
  return {
    files: directories.map((directory) => new CheckpointFiles(directory)),
    witnesses: audit.witnesses.map((witness) => new WitnessClient(witness)),
  };
}

function startRetentionSweep(
  db: Database,
  { retention, webhook }: Pick<Config, 'retention' | 'webhook'>,
  log: Logger,
): NodeJS.Timeout {
  const everyMs = Math.min(60_000, Math.max(250, retention.payloadsMs / 4));
  let isRunning = false;
  const timer = setInterval(async () => {
    if (isRunning) return;
    isRunning = true;
    try {
      while ((await eraseExpiredPayloads(db, retention.payloadsMs)) >= 500);
      await eraseRunCheckpoints(db, retention.payloadsMs);
      if (retention.keysMs !== null) while ((await dropTombstones(db, retention.keysMs)) >= 500);
      while ((await deleteOldNotices(db, retention.payloadsMs, webhook === undefined)) >= 500);
      await deleteEndedProcesses(db);
    } catch (error) {
      log.warn({ err: String(error) }, 'The retention sweep failed and will run again.');
    } finally {
      isRunning = false;
    }
  }, everyMs);
  timer.unref();
  return timer;
}

/** `sending:2` kills this process when a call reaches that kill point for the second time. For the fault tests. */
function buildKillPoint(dieAt: string | undefined): (point: KillPoint) => void {
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
