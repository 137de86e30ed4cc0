import cluster, { type Worker } from 'node:cluster';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import Fastify from 'fastify';
import type { Logger } from 'pino';
import { registerDemoServices } from '../demo/services.ts';

/** A worker that died is replaced after this long: one that dies at once must not eat the machine. */
const REPLACE_MS = 500;

export interface WorkersOptions {
  readonly count: number;
  /** What each of them finds in its environment, beyond ours. */
  readonly env: Readonly<Record<string, string>>;
  readonly log: Logger;
}

/**
 * Worker processes behind one port. Each is a whole gateway with a lease of its own, as a replica on another machine would
 * be; this process only starts them, replaces the dead, and owns what there must be one of. If it dies, they end at once.
 */
export class Workers {
  readonly #options: WorkersOptions;
  #stopping = false;

  constructor(options: WorkersOptions) {
    this.#options = options;
  }

  /** Resolves when all of them listen. Rejects when one ends before that: it has said why. */
  async start(): Promise<void> {
    await Promise.all(Array.from({ length: this.#options.count }, () => listening(this.#fork())));
    cluster.on('exit', (worker, code, signal) => this.#replace(worker, code, signal));
  }

  signal(signal: NodeJS.Signals): void {
    for (const worker of living()) worker.process.kill(signal);
  }

  /** They drain what they carry; resolves when the last one is gone. */
  async stop(): Promise<void> {
    this.#stopping = true;
    const gone = living().map((worker) => once(worker, 'exit'));
    this.signal('SIGTERM');
    await Promise.all(gone);
  }

  #fork(): Worker {
    return cluster.fork({ ...this.#options.env, ONCEGATE_WORKERS: '1' });
  }

  #replace(worker: Worker, code: number, signal: string): void {
    if (this.#stopping) return;
    this.#options.log.error({ pid: worker.process.pid, code, signal }, 'a worker ended; it is replaced');
    void sleep(REPLACE_MS).then(() => {
      if (!this.#stopping) this.#fork();
    });
  }
}

function living(): Worker[] {
  return Object.values(cluster.workers ?? {}).filter((worker) => worker !== undefined && !worker.isDead()) as Worker[];
}

async function listening(worker: Worker): Promise<void> {
  const ended = new Promise<never>((_, reject) => {
    worker.once('exit', () => reject(new WorkerFailed()));
  });
  await Promise.race([once(worker, 'listening'), ended]);
}

/** A worker did not come up. What was wrong stands above, in its own words. */
export class WorkerFailed extends Error {}

/** The demo's services have a state of their own, so there is one of them, at an address that only the workers are told. */
export async function demoBeside(demo: { readonly stateFile: string; readonly token: string }) {
  const app = Fastify({ logger: false, forceCloseConnections: true });
  await app.register((scope) => registerDemoServices(scope, demo), { prefix: '/demo' });
  const address = await app.listen({ host: '127.0.0.1', port: 0 });
  return { url: `${address}/demo`, stop: () => app.close() };
}
