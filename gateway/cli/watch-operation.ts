import { setTimeout as sleep } from 'node:timers/promises';
import type { JsonObject } from '../domain/json.ts';
import { requestGateway } from './gateway-client.ts';
import { type Invocation, VerbError } from './verb.ts';

const POLL_INTERVAL = { firstMs: 100, maxMs: 1_000 };
/** Longer than a restart of the gateway takes. */
const MAX_SILENCE_MS = 60_000;
const TRANSIENT_CODES = ['no_gateway', 'not_a_gateway', 'unavailable', 'rate_limited'];

export interface WatchedOperation {
  /** Starts the operation and returns its state. Ctrl-C waits for this request, so that its result is known. */
  readonly start: () => Promise<JsonObject>;
  readonly path: string;
  readonly isFinished: (seen: JsonObject) => boolean;
  readonly onUpdate?: (seen: JsonObject) => void;
  /** Tells a person who stops watching that the operation continues. */
  readonly interruptedMessage: string;
}

/**
 * Starts an operation and polls until it is finished. The gateway does the work, so neither Ctrl-C here nor a restart of
 * the gateway stops it.
 */
export async function startAndWatch(
  { io, out }: Pick<Invocation, 'io' | 'out'>,
  watched: WatchedOperation,
): Promise<JsonObject> {
  const { start, path, isFinished, onUpdate, interruptedMessage } = watched;
  const stop = new AbortController();
  const release = io.onInterrupt?.(() => stop.abort());
  const { signal } = stop;
  let silentSince: number | undefined;
  try {
    let seen = await start();
    for (let pause = POLL_INTERVAL.firstMs; ; pause = Math.min(pause * 1.5, POLL_INTERVAL.maxMs)) {
      onUpdate?.(seen);
      if (isFinished(seen)) return seen;
      await sleep(pause, undefined, { signal }).catch(() => {});
      try {
        seen = await requestGateway(io, path, { signal });
        silentSince = undefined;
      } catch (error) {
        if (signal.aborted) throw new VerbError('interrupted', interruptedMessage, { last: seen });
        if (!(error instanceof VerbError) || !TRANSIENT_CODES.includes(error.code)) throw error;
        if (silentSince === undefined)
          out.printNote('The gateway does not answer. The operation continues when it is back.');
        silentSince ??= performance.now();
        if (performance.now() - silentSince > MAX_SILENCE_MS)
          throw new VerbError(error.code, `${error.message}\n${interruptedMessage}`, { last: seen });
      }
    }
  } finally {
    release?.();
  }
}
