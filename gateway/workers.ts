import cluster, { type Worker } from 'node:cluster';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import Fastify from 'fastify';
import type { Logger } from 'pino';
import { registerDemoServices } from '../demo/services.ts';

/** A dead worker is replaced after this delay, so that one that always dies at once does not use all CPU time. */
const RESTART_DELAY_MS = 500;

export interface WorkersOptions {
  readonly count: number;
  /** Added to the environment of each worker. */
  readonly env: Readonly<Record<string, string>>;
  readonly log: Logger;
}

/**
 * Worker processes that share one port. Each is a complete replica with its own lease. This process starts them,
 * replaces dead ones, and owns what must exist once. If it dies, the workers end at once.
 */
export class WorkerPool {
  readonly #options: WorkersOptions;
  #stopping = false;

  constructor(options: WorkersOptions) {
    this.#options = options;
  }

  /** Resolves when all workers listen. Rejects if one ends before; that worker has printed why. */
  async start(): Promise<void> {
    await Promise.all(Array.from({ length: this.#options.count }, () => waitUntilListening(this.#fork())));
    cluster.on('exit', (worker, code, signal) => this.#replace(worker, code, signal));
  }

  signal(signal: NodeJS.Signals): void {
    for (const worker of listLiveWorkers()) worker.process.kill(signal);
  }

  /** The workers drain their calls; resolves when the last one has ended. */
  async stop(): Promise<void> {
    this.#stopping = true;
    const exits = listLiveWorkers().map((worker) => once(worker, 'exit'));
    this.signal('SIGTERM');
    await Promise.all(exits);
  }

  #fork(): Worker {
    return cluster.fork({ ...this.#options.env, ONCEGATE_WORKERS: '1' });
  }

  #replace(worker: Worker, code: number, signal: string): void {
    if (this.#stopping) return;
    this.#options.log.error({ pid: worker.process.pid, code, signal }, 'A worker process ended and is replaced.');
    void sleep(RESTART_DELAY_MS).then(() => {
      if (!this.#stopping) this.#fork();
    });
  }
}

function listLiveWorkers(): Worker[] {
  return Object.values(cluster.workers ?? {}).filter((worker) => worker !== undefined && !worker.isDead()) as Worker[];
}

async function waitUntilListening(worker: Worker): Promise<void> {
  const ended = new Promise<never>((_, reject) => {
    worker.once('exit', () => reject(new WorkerFailedError()));
  });
  await Promise.race([once(worker, 'listening'), ended]);
}

/** A worker failed to start. It has already printed the reason. */
export class WorkerFailedError extends Error {}

/** Starts the demo services once for all workers, because they have state. Only the workers know the address. */
export async function startDemoServer(demo: { readonly stateFile: string; readonly token: string }) {
  const app = Fastify({ logger: false, forceCloseConnections: true });
  await app.register((scope) => registerDemoServices(scope, demo), { prefix: '/demo' });
  const address = await app.listen({ host: '127.0.0.1', port: 0 });
  return { url: `${address}/demo`, stop: () => app.close() };
}
