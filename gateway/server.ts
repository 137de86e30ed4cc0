import cluster from 'node:cluster';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pino from 'pino';
import { buildApp } from './app.ts';
import { ApprovalNotifier } from './approval-notifier.ts';
import { formatBanner } from './banner.ts';
import { buildDemoEnv, type Config, ConfigError, readConfig } from './config.ts';
import { readConsoleFiles } from './console-files.ts';
import { buildAuditEntry } from './domain/audit/audit.ts';
import { Engine } from './engine.ts';
import { enqueueAuditEntry } from './ledger/audit/audit-queue.ts';
import { readBacklog } from './ledger/audit/backlog.ts';
import { EmbeddedError, type EmbeddedPostgres, startEmbeddedPostgres } from './ledger/embedded/embedded-postgres.ts';
import { DatabaseUnreachableError, migrateDatabase } from './ledger/migrate.ts';
import { SchemaError } from './ledger/schema-error.ts';
import { PolicyStore } from './policy-store.ts';
import { type DemoKeys, loadAuditKey, loadDemoKeys, loadSealingKey } from './secret-files.ts';
import { Metrics } from './telemetry/metrics.ts';
import { ProcessAuditLog } from './telemetry/process-audit-log.ts';
import { TelemetryRecorder } from './telemetry/telemetry.ts';
import { startTracing } from './telemetry/tracing.ts';
import { TokenVerifier } from './token-verifier.ts';
import { buildClusterMetrics, serveClusterMetrics } from './worker-metrics.ts';
import { startDemoServer, WorkerFailedError, WorkerPool } from './workers.ts';

/** The gauges of the backlog stop counting here, because counting more would load a busy database. */
const MAX_COUNTED_BACKLOG = 20_000;

const ROOT = new URL('../../', import.meta.url).pathname;
const MAX_DRAIN_MS = 25_000;
/** Most boots are faster; one that waits for a lock or a silent database may never end. */
const MAX_BOOT_MS = 5_000;
const AUDIT_WRITE_TIMEOUT_MS = 2_000;
/** A silent collector must not delay the end of the gateway. */
const TRACING_STOP_TIMEOUT_MS = 2_000;
const MAX_LOGGED_FAULTS = 20;

/** Runs the gateway until a signal ends it. Prints why and exits with 1 if it cannot start. */
export async function runGateway(): Promise<void> {
  try {
    await start();
  } catch (error) {
    process.stderr.write(`${explainFailure(error)}\n`);
    process.exit(1);
  }
}

async function start(): Promise<void> {
  const config = await withFreePort(await readConfig(process.env, process.cwd()));
  if (config.workers > 1 && cluster.isPrimary) await runSupervisor(config);
  else await serve(config);
}

/** Starts the parts that must exist once, then the worker processes, which share one port. */
async function runSupervisor(config: Config): Promise<void> {
  const log = pino({ level: config.logLevel }, pino.destination({ fd: 1, sync: false }));
  const stops: (() => Promise<void>)[] = [];
  const stop = buildStop(stops, log);
  const boot = stopOnSignal(stop);
  try {
    const keys = config.demo ? await loadDemoKeys(config.dataDir) : undefined;
    // Load the policies here, so that their faults are printed once.
    const env = { ...config.env, ...buildDemoEnv(config.listen, keys, config.env) };
    await (await PolicyStore.start(config.policiesDir, env, log)).close();
    const url = await startDatabase(config, stops);
    await migrateDatabase(url, join(ROOT, 'migrations'), printToStderr);
    const demo = keys === undefined ? undefined : await startDemoServer(buildDemoOptions(config, keys));
    if (demo !== undefined) stops.push(demo.stop);
    const workers = new WorkerPool({
      count: config.workers,
      env: {
        DATABASE_URL: url,
        PORT: String(config.listen.port),
        ...(demo === undefined ? {} : { ONCEGATE_DEMO_URL: demo.url }),
      },
      log,
    });
    stops.push(() => workers.stop());
    serveClusterMetrics();
    await workers.start();
    process.on('SIGHUP', () => workers.signal('SIGHUP'));
    printBanner(config, keys, keys !== undefined);
  } catch (error) {
    await stop();
    // A signal during the boot is no failure.
    if (!boot.isEnding()) throw error;
  } finally {
    boot.bootEnded();
  }
}

/**
 * Ends the process on SIGTERM or SIGINT. Waits for the end of the boot, because a half started process does not stop
 * cleanly, but not for longer than MAX_BOOT_MS. Ctrl-C reaches the whole process group, and npm forwards its signal too,
 * so later signals are ignored: their default would kill a draining process and leave PostgreSQL running. Call
 * `bootEnded` when the boot has succeeded or failed.
 */
function stopOnSignal(stop: () => Promise<void>): { bootEnded: () => void; isEnding: () => boolean } {
  let bootEnded = () => {};
  const boot = new Promise<void>((resolve) => {
    bootEnded = resolve;
  });
  let isEnding = false;
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      if (isEnding) return;
      isEnding = true;
      void waitAtMost(MAX_BOOT_MS, boot)
        .then(stop)
        .then(() => process.exit(0));
    });
  }
  return { bootEnded, isEnding: () => isEnding };
}

function buildDemoOptions(config: Config, keys: DemoKeys) {
  return { stateFile: join(config.dataDir, 'demo-services.jsonl'), token: keys.token };
}

async function serve(config: Config): Promise<void> {
  const { version } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  const log = pino({ level: config.logLevel }, pino.destination({ fd: 1, sync: false }));
  const stops: (() => Promise<void>)[] = [];
  const stop = buildStop(stops, log);
  let beginShutdown = () => {};
  let stopBy = Number.POSITIVE_INFINITY;
  const timeLeft = () => Math.max(0, Math.min(MAX_DRAIN_MS, stopBy - performance.now()));
  let reload = () => {};
  const boot = stopOnSignal(() => {
    stopBy = performance.now() + MAX_DRAIN_MS;
    beginShutdown();
    return stop();
  });

  try {
    const keys = config.demo ? await loadDemoKeys(config.dataDir) : undefined;
    const policies = await PolicyStore.start(
      config.policiesDir,
      { ...config.env, ...buildDemoEnv(config.listen, keys, config.env) },
      log,
    );
    stops.push(() => policies.close());
    reload = () => void policies.reload('SIGHUP');

    const url = await startDatabase(config, stops);
    await migrateDatabase(url, join(ROOT, 'migrations'), printToStderr);
    const metrics = new Metrics();
    const tracing = await startTracing(config.telemetry, version);
    if (tracing !== undefined) stops.push(() => waitAtMost(TRACING_STOP_TIMEOUT_MS, tracing.stop()));
    const engine = await Engine.start({
      telemetry: new TelemetryRecorder(metrics, tracing, log),
      onBatch: (size, waiting) => metrics.recordBatch(size, waiting),
      config,
      url,
      policies,
      sealingKey: config.encryptionKey ?? (await loadSealingKey(config.dataDir)),
      auditKey: await loadAuditKey(config.dataDir, config.audit.key),
      log,
    });
    stops.push(() => engine.stop(timeLeft()));

    const { db, adapters } = engine.services.ctx;
    metrics.addSources({
      breakers: () => adapters.listBreakers(),
      backlog: () => readBacklog(db, MAX_COUNTED_BACKLOG),
    });
    const auditRecords = await startAuditRecords(engine, policies, metrics, version, log, stops);
    if (config.webhook !== undefined) {
      const notifier = new ApprovalNotifier(engine.services.ctx.db, config.webhook, log);
      stops.push(() => notifier.stop());
    }

    const app = await buildApp({
      services: engine.services,
      console: await readConsoleFiles(join(ROOT, 'console')),
      control: {
        faults: () => policies.faults,
        reload: async (askedBy) => {
          const faults = await policies.reload(askedBy);
          // Answer when the reload is in the audit log, or when the ledger does not take it in time.
          await waitAtMost(AUDIT_WRITE_TIMEOUT_MS, auditRecords.waitUntilWritten());
          return faults;
        },
      },
      tokens: new TokenVerifier(),
      metrics: buildClusterMetrics(metrics),
      health: {
        troubles: () => engine.findTroubles(),
        warnings: () => [...policies.warnings(), ...engine.listWarnings()],
      },
      log,
      version,
      bodyBytes: config.limits.bodyBytes,
      maxInflight: config.limits.inflight,
      doorLimits: config.limits,
      demo: keys === undefined || cluster.isWorker ? undefined : buildDemoOptions(config, keys),
    });
    await app.listen({ ...config.listen, backlog: 1024 });
    stops.push(() => waitAtMost(timeLeft(), app.close()));
    beginShutdown = () => engine.beginShutdown();
    engine.recover();
    if (cluster.isPrimary) printBanner(config, keys, policies.has('demo'));
    process.on('SIGHUP', () => reload());
  } catch (error) {
    await stop();
    // A signal during the boot is no failure.
    if (!boot.isEnding()) throw error;
  } finally {
    boot.bootEnded();
  }
}

/** Records boots and policy loads in the audit log and the metrics. A gateway that cannot record its boot does not start. */
async function startAuditRecords(
  engine: Engine,
  policies: PolicyStore,
  metrics: Metrics,
  gateway: string,
  log: pino.Logger,
  stops: (() => Promise<void>)[],
): Promise<ProcessAuditLog> {
  const { db, lease } = engine.services.ctx;
  const auditRecords = new ProcessAuditLog(db, log);
  stops.push(() => auditRecords.stop());
  await enqueueAuditEntry(
    db,
    buildAuditEntry('booted', {
      process: lease.id,
      host: hostname(),
      gateway,
      policyVersion: policies.current.version,
    }),
  );
  policies.onLoad(({ version, faults, askedBy }) => {
    const isRefused = faults.length > 0;
    metrics.setPolicies(version, isRefused);
    auditRecords.write(isRefused ? 'policies_refused' : 'policies_loaded', {
      process: lease.id,
      policyVersion: version,
      askedBy,
      ...(isRefused ? { faults: faults.slice(0, MAX_LOGGED_FAULTS) } : {}),
    });
  });
  metrics.setPolicies(policies.current.version, policies.warnings().length > 0);
  return auditRecords;
}

/** Chooses a port for port 0 before the policies are loaded, because the demo policies contain the URL. */
async function withFreePort(config: Config): Promise<Config> {
  if (config.listen.port !== 0) return config;
  const finder = createServer().listen(0, config.listen.host);
  await once(finder, 'listening');
  const { port } = finder.address() as AddressInfo;
  finder.close();
  await once(finder, 'close');
  return { ...config, listen: { ...config.listen, port } };
}

function printToStderr(line: string): void {
  process.stderr.write(`${line}\n`);
}

async function waitAtMost(ms: number, work: PromiseLike<unknown>): Promise<void> {
  await Promise.race([work, sleep(ms, undefined, { ref: false })]);
}

async function startDatabase(config: Config, stops: (() => Promise<void>)[]): Promise<string> {
  if (config.database.url !== undefined) return config.database.url;
  const starting: Promise<EmbeddedPostgres> = startEmbeddedPostgres({
    dataDir: config.dataDir,
    log: printToStderr,
  });
  // Registered before the start has finished, because a server that starts later would stay behind.
  stops.push(() =>
    starting.then(
      (embedded) => embedded.stop(),
      () => {},
    ),
  );
  return (await starting).url;
}

/** Stops all parts in reverse order, once. A part that fails to stop does not keep the others running. */
function buildStop(stops: (() => Promise<void>)[], log: pino.Logger): () => Promise<void> {
  let stopping: Promise<void> | undefined;
  return () => {
    stopping ??= (async () => {
      for (const part of stops.reverse()) {
        await part().catch((error: unknown) =>
          log.error({ err: error }, 'A part of the gateway did not stop cleanly.'),
        );
      }
    })();
    return stopping;
  };
}

function printBanner(config: Config, keys: DemoKeys | undefined, hasDemoPolicies: boolean): void {
  const facts = {
    ...config.listen,
    policiesDir: config.policiesDir,
    dataDir: config.dataDir,
    isExternalDatabase: config.database.url !== undefined,
  };
  process.stdout.write(`${formatBanner(facts, hasDemoPolicies ? keys : undefined)}\n`);
}

function explainFailure(error: unknown): string {
  if (error instanceof WorkerFailedError)
    return 'oncegate did not start: a worker process ended during its start, for the reason above';
  if (error instanceof ConfigError)
    return [
      ...error.faults,
      '',
      `oncegate did not start: correct the ${error.faults.length === 1 ? 'fault' : `${error.faults.length} faults`} above`,
    ].join('\n');
  if (error instanceof EmbeddedError || error instanceof SchemaError) return `oncegate did not start: ${error.message}`;
  if (error instanceof DatabaseUnreachableError)
    return `oncegate did not start: the database of DATABASE_URL cannot be used: ${error.message}`;
  const { code, port, address } = error as NodeJS.ErrnoException & { port?: number; address?: string };
  if (code === 'EADDRINUSE') {
    return `oncegate did not start: port ${port} of ${address} is taken. Stop the program that listens there, or choose another port: PORT=8081 npm start`;
  }
  if (code === 'EACCES' && port !== undefined)
    return `oncegate did not start: port ${port} is not allowed for this user; choose a port above 1023 with PORT=…`;
  return `oncegate did not start: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`;
}
