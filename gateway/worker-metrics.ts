import cluster from 'node:cluster';
import { randomUUID } from 'node:crypto';
import { AggregatorRegistry } from 'prom-client';
import type { MetricsPage } from './http/public-routes.ts';

/** Sent by a worker to its parent process, which collects the metrics of all workers. */
interface MetricsRequest {
  readonly oncegate: 'metrics';
  readonly id: string;
}
type MetricsReply = MetricsRequest & { readonly text: string };

const REPLY_TIMEOUT_MS = 5_000;

/** Runs in the parent process, so that any worker serves the metrics of all workers. */
export function serveClusterMetrics(): void {
  const all = new AggregatorRegistry();
  cluster.on('message', (worker, message: MetricsRequest) => {
    if (message?.oncegate !== 'metrics') return;
    all.clusterMetrics().then(
      (text) => {
        // The worker may have died meanwhile.
        if (worker.isConnected()) worker.send({ ...message, text } satisfies MetricsReply, () => {});
      },
      () => {
        // A worker did not answer in time; the requesting worker then serves its own metrics.
      },
    );
  });
}

/** Runs in a worker: the metrics of all workers, or only its own if the parent process does not answer. */
export function buildClusterMetrics(own: MetricsPage): MetricsPage {
  if (!cluster.isWorker) return own;
  // The registry answers the parent process when it collects.
  new AggregatorRegistry();
  const waiting = new Map<string, (text: string) => void>();
  process.on('message', (message: MetricsReply) => {
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
        const timer = setTimeout(() => end(own.text()), REPLY_TIMEOUT_MS);
        waiting.set(id, end);
        process.send?.({ oncegate: 'metrics', id } satisfies MetricsRequest);
      }),
  };
}
