import cluster from 'node:cluster';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pino from 'pino';
import { buildApp } from './app.ts';
import { banner } from './banner.ts';
import { type Config, ConfigError, demoEnv, readConfig } from './config.ts';
import { readConsole } from './console-files.ts';
import { buildAuditEntry } from './domain/audit/audit.ts';
import { Engine } from './engine.ts';
import { enqueueAuditEntry } from './ledger/audit/audit-queue.ts';
import { readBacklog } from './ledger/audit/backlog.ts';
import { EmbeddedError, type EmbeddedPostgres, startEmbeddedPostgres } from './ledger/embedded/embedded-postgres.ts';
import { DatabaseUnreachableError, migrateDatabase, SchemaError } from './ledger/migrate.ts';
import { ApprovalNotifier } from './messenger.ts';
import { PolicyStore } from './policy-keeper.ts';
import { auditKey, type DemoKeys, demoKeys, sealingKey } from './secret-files.ts';
import { Metrics } from './telemetry/metrics.ts';
import { ProcessAuditLog } from './telemetry/process-audit-log.ts';
import { TelemetryRecorder } from './telemetry/telemetry.ts';
import { startTracing } from './telemetry/tracing.ts';
import { Tokens } from './tokens.ts';
import { answerForAll, metricsOfAll } from './worker-metrics.ts';
import { demoBeside, WorkerFailed, Workers } from './workers.ts';

/** A gauge that stands at this says that there is very much; counting on would take the ledger's time when it has least. */
const MOST_SOUNDED = 20_000;

const ROOT = new URL('../../', import.meta.url).pathname;
const DRAIN_MS = 25_000;
/** Most boots are over by then; one that waits for a lock, or for a database that is silent, may never be. */
const BOOT_MS = 5_000;
const JOURNAL_MS = 2_000;
/** A collector that is silent must not keep a gateway from ending. */
const TRACING_MS = 2_000;
const MOST_FAULTS = 20;

/** The process: everything is started here in order, and stopped in the opposite one. */
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
  if (config.workers > 1 && cluster.isPrimary) await supervise(config);
  else await serve(config);
}

/** Several processes behind one port: what there must be one of is started here, then they are. */
async function supervise(config: Config): Promise<void> {
  const log = pino({ level: config.logLevel }, pino.destination({ fd: 1, sync: false }));
  const stops: (() => Promise<void>)[] = [];
  const stop = stopper(stops, log);
  const boot = endOnSignal(stop);
  try {
    const keys = config.demo ? await demoKeys(config.dataDir) : undefined;
    // Read here for their faults, which are then told once.
    const env = { ...config.env, ...demoEnv(config.listen, keys, config.env) };
    await (await PolicyStore.start(config.policiesDir, env, log)).close();
    const url = await database(config, stops);
    await migrateDatabase(url, join(ROOT, 'migrations'));
    const beside = keys === undefined ? undefined : await demoBeside(demoOptions(config, keys));
    if (beside !== undefined) stops.push(beside.stop);
    const workers = new Workers({
      count: config.workers,
      env: {
        DATABASE_URL: url,
        PORT: String(config.listen.port),
        ...(beside === undefined ? {} : { ONCEGATE_DEMO_URL: beside.url }),
      },
      log,
    });
    stops.push(() => workers.stop());
    answerForAll();
    await workers.start();
    process.on('SIGHUP', () => workers.signal('SIGHUP'));
    announce(config, keys, keys !== undefined);
  } catch (error) {
    await stop();
    // Asked to end while it started: that is no failure.
    if (!boot.isEnding()) throw error;
  } finally {
    boot.isOver();
  }
}

/**
 * Ends the process when it is asked to, once it has booted, because what is half started is not stopped cleanly; or a while later,
 * because a boot may hang. Whoever presses Ctrl-C signals the whole group, and npm passes its own on, so the same is asked for twice.
 * What comes after the first changes nothing; the default would kill what is draining, and leave PostgreSQL behind. `isOver` is to be
 * called when it has booted, or failed to.
 */
function endOnSignal(end: () => Promise<void>): { isOver: () => void; isEnding: () => boolean } {
  let isOver = () => {};
  const boot = new Promise<void>((resolve) => {
    isOver = resolve;
  });
  let isEnding = false;
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => {
      if (isEnding) return;
      isEnding = true;
      void within(BOOT_MS, boot)
        .then(end)
        .then(() => process.exit(0));
    });
  }
  return { isOver, isEnding: () => isEnding };
}

function demoOptions(config: Config, keys: DemoKeys) {
  return { stateFile: join(config.dataDir, 'demo-services.jsonl'), token: keys.token };
}

async function serve(config: Config): Promise<void> {
  const { version } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8')) as { version: string };
  const log = pino({ level: config.logLevel }, pino.destination({ fd: 1, sync: false }));
  const stops: (() => Promise<void>)[] = [];
  const stop = stopper(stops, log);
  let letGo = () => {};
  let endBy = Number.POSITIVE_INFINITY;
  const timeLeft = () => Math.max(0, Math.min(DRAIN_MS, endBy - performance.now()));
  let reload = () => {};
  const boot = endOnSignal(() => {
    endBy = performance.now() + DRAIN_MS;
    letGo();
    return stop();
  });

  try {
    const keys = config.demo ? await demoKeys(config.dataDir) : undefined;
    const policies = await PolicyStore.start(
      config.policiesDir,
      { ...config.env, ...demoEnv(config.listen, keys, config.env) },
      log,
    );
    stops.push(() => policies.close());
    reload = () => void policies.reload('SIGHUP');

    const url = await database(config, stops);
    await migrateDatabase(url, join(ROOT, 'migrations'));
    const metrics = new Metrics();
    const tracing = await startTracing(config.telemetry, version);
    if (tracing !== undefined) stops.push(() => within(TRACING_MS, tracing.stop()));
    const engine = await Engine.start({
      watch: new TelemetryRecorder(metrics, tracing, log),
      onBatch: (size, waiting) => metrics.recordBatch(size, waiting),
      config,
      url,
      policies,
      sealingKey: config.encryptionKey ?? (await sealingKey(config.dataDir)),
      auditKey: await auditKey(config.dataDir, config.audit.key),
      log,
    });
    stops.push(() => engine.stop(timeLeft()));

    const { db, adapters } = engine.flow.station;
    metrics.addSources({ breakers: () => adapters.listBreakers(), backlog: () => readBacklog(db, MOST_SOUNDED) });
    const journal = await keepRecords(engine, policies, metrics, version, log, stops);
    if (config.webhook !== undefined) {
      const messenger = new ApprovalNotifier(engine.flow.station.db, config.webhook, log);
      stops.push(() => messenger.stop());
    }

    const app = await buildApp({
      flow: engine.flow,
      console: await readConsole(join(ROOT, 'console')),
      control: {
        faults: () => policies.faults,
        reload: async (askedBy) => {
          const faults = await policies.reload(askedBy);
          // Whoever asked is answered when it is in the log, or when the ledger is plainly not there.
          await within(JOURNAL_MS, journal.waitUntilWritten());
          return faults;
        },
      },
      tokens: new Tokens(),
      metrics: metricsOfAll(metrics),
      health: { troubles: () => engine.troubles(), warnings: () => [...policies.warnings(), ...engine.warnings()] },
      log,
      version,
      bodyBytes: config.limits.bodyBytes,
      inflight: config.limits.inflight,
      doorLimits: config.limits,
      demo: keys === undefined || cluster.isWorker ? undefined : demoOptions(config, keys),
    });
    await app.listen({ ...config.listen, backlog: 1024 });
    stops.push(() => within(timeLeft(), app.close()));
    letGo = () => engine.letGo();
    engine.recover();
    if (cluster.isPrimary) announce(config, keys, policies.has('demo'));
    process.on('SIGHUP', () => reload());
  } catch (error) {
    await stop();
    // Asked to end while it started: that is no failure.
    if (!boot.isEnding()) throw error;
  } finally {
    boot.isOver();
  }
}

/** Boots and policies are counted and logged; a gateway that cannot log that it booted does not start. */
async function keepRecords(
  engine: Engine,
  policies: PolicyStore,
  metrics: Metrics,
  gateway: string,
  log: pino.Logger,
  stops: (() => Promise<void>)[],
): Promise<ProcessAuditLog> {
  const { db, lease } = engine.flow.station;
  const journal = new ProcessAuditLog(db, log);
  stops.push(() => journal.stop());
  await enqueueAuditEntry(
    db,
    buildAuditEntry('booted', {
      process: lease.id,
      host: hostname(),
      gateway,
      policyVersion: policies.current.version,
    }),
  );
  policies.onReading(({ version, faults, askedBy }) => {
    const refused = faults.length > 0;
    metrics.setPolicies(version, refused);
    journal.write(refused ? 'policies_refused' : 'policies_loaded', {
      process: lease.id,
      policyVersion: version,
      askedBy,
      ...(refused ? { faults: faults.slice(0, MOST_FAULTS) } : {}),
    });
  });
  metrics.setPolicies(policies.current.version, policies.warnings().length > 0);
  return journal;
}

/** Port 0 means any: chosen before the policies are read, because the demo's own URL stands in them. */
async function withFreePort(config: Config): Promise<Config> {
  if (config.listen.port !== 0) return config;
  const finder = createServer().listen(0, config.listen.host);
  await once(finder, 'listening');
  const { port } = finder.address() as AddressInfo;
  finder.close();
  await once(finder, 'close');
  return { ...config, listen: { ...config.listen, port } };
}

async function within(ms: number, work: PromiseLike<unknown>): Promise<void> {
  await Promise.race([work, sleep(ms, undefined, { ref: false })]);
}

async function database(config: Config, stops: (() => Promise<void>)[]): Promise<string> {
  if (config.database.url !== undefined) return config.database.url;
  const starting: Promise<EmbeddedPostgres> = startEmbeddedPostgres({
    dataDir: config.dataDir,
    log: (message) => process.stderr.write(`${message}\n`),
  });
  // Also while it starts: a server that comes up after we are gone would stay.
  stops.push(() =>
    starting.then(
      (embedded) => embedded.stop(),
      () => {},
    ),
  );
  return (await starting).url;
}

/** Stops in reverse order, once; a part that fails to stop does not keep the others from it. */
function stopper(stops: (() => Promise<void>)[], log: pino.Logger): () => Promise<void> {
  let stopping: Promise<void> | undefined;
  return () => {
    stopping ??= (async () => {
      for (const part of stops.reverse()) {
        await part().catch((error: unknown) => log.error({ err: error }, 'a part did not stop cleanly'));
      }
    })();
    return stopping;
  };
}

function announce(config: Config, keys: DemoKeys | undefined, demoPolicies: boolean): void {
  const shown = {
    ...config.listen,
    policiesDir: config.policiesDir,
    dataDir: config.dataDir,
    isExternalDatabase: config.database.url !== undefined,
  };
  process.stdout.write(`${banner(shown, demoPolicies ? keys : undefined)}\n`);
}

function explainFailure(error: unknown): string {
  if (error instanceof WorkerFailed) return 'oncegate did not start: a worker ended before it was ready, see above';
  if (error instanceof ConfigError)
    return [...error.faults, '', `oncegate did not start: ${error.faults.length} fault(s) above`].join('\n');
  if (error instanceof EmbeddedError || error instanceof SchemaError) return `oncegate did not start: ${error.message}`;
  if (error instanceof DatabaseUnreachableError)
    return `oncegate did not start: the database of DATABASE_URL cannot be used: ${error.message}`;
  const { code, port, address } = error as NodeJS.ErrnoException & { port?: number; address?: string };
  if (code === 'EADDRINUSE') {
    return `oncegate did not start: port ${port} of ${address} is taken. Stop what listens there (another gateway?), or choose another: PORT=8081 npm start`;
  }
  if (code === 'EACCES' && port !== undefined)
    return `oncegate did not start: port ${port} needs rights that this user lacks; choose one above 1023 with PORT=…`;
  return `oncegate did not start: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`;
}
