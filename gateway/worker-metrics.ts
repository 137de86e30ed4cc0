import cluster from 'node:cluster';
import { randomUUID } from 'node:crypto';
import { AggregatorRegistry } from 'prom-client';
import type { MetricsPage } from './http/public-routes.ts';

/** Between a worker that is asked for metrics and the process that can ask all of them. */
interface Asked {
  readonly oncegate: 'metrics';
  readonly id: string;
}
type Answered = Asked & { readonly text: string };

const PATIENCE_MS = 5_000;

/** In the process that started the workers: whichever of them is asked for metrics is told those of all. */
export function answerForAll(): void {
  const all = new AggregatorRegistry();
  cluster.on('message', (worker, message: Asked) => {
    if (message?.oncegate !== 'metrics') return;
    all.clusterMetrics().then(
      (text) => {
        // It may have died while the others were asked.
        if (worker.isConnected()) worker.send({ ...message, text } satisfies Answered, () => {});
      },
      () => {
        // One of them did not answer in time; the worker that asked then tells its own.
      },
    );
  });
}

/** In a worker: everybody's metrics where the others can be reached, its own otherwise. */
export function metricsOfAll(own: MetricsPage): MetricsPage {
  if (!cluster.isWorker) return own;
  // Answers the process above when that collects.
  new AggregatorRegistry();
  const waiting = new Map<string, (text: string) => void>();
  process.on('message', (message: Answered) => {
    if (message?.oncegate === 'metrics') waiting.get(message.id)?.(message.text);
  });
  return {
    contentType: own.contentType,
    text: () =>
      new Promise((resolve, reject) => {
        const id = randomUUID();
        const end = (text: Promise<string> | string) => {
          clearTimeout(timer);
          waiting.delete(id);
          Promise.resolve(text).then(resolve, reject);
        };
        const timer = setTimeout(() => end(own.text()), PATIENCE_MS);
        waiting.set(id, end);
        process.send?.({ oncegate: 'metrics', id } satisfies Asked);
      }),
  };
}
