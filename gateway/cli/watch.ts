import { setTimeout as sleep } from 'node:timers/promises';
import type { JsonObject } from '../domain/json.ts';
import { askGateway } from './ask-gateway.ts';
import { type Invocation, NotGood } from './verb.ts';

const POLL = { firstMs: 100, mostMs: 1_000 };
/** A gateway that restarts is back sooner than this. */
const PATIENCE_WITH_SILENCE_MS = 60_000;
const PASSING = ['no_gateway', 'not_a_gateway', 'unavailable', 'rate_limited'];

export interface Watched {
  /** Has it done, and tells how it stands. Ctrl-C waits for that: before it nobody knows whether anything is begun. */
  readonly begin: () => Promise<JsonObject>;
  readonly path: string;
  readonly isAtRest: (seen: JsonObject) => boolean;
  readonly tell?: (seen: JsonObject) => void;
  /** Said to whoever stops watching: what was begun does not stop with them. */
  readonly goesOn: string;
}

/**
 * Begins something, looks until it comes to rest, and resolves with how it stands then. The gateway does it, not this
 * process: neither Ctrl-C nor a gateway that is gone for a while ends it.
 */
export async function watch({ io, out }: Pick<Invocation, 'io' | 'out'>, watched: Watched): Promise<JsonObject> {
  const { begin, path, isAtRest, tell, goesOn } = watched;
  const stop = new AbortController();
  const release = io.onInterrupt?.(() => stop.abort());
  const { signal } = stop;
  let silentSince: number | undefined;
  try {
    let seen = await begin();
    for (let pause = POLL.firstMs; ; pause = Math.min(pause * 1.5, POLL.mostMs)) {
      tell?.(seen);
      if (isAtRest(seen)) return seen;
      await sleep(pause, undefined, { signal }).catch(() => {});
      try {
        seen = await askGateway(io, path, { signal });
        silentSince = undefined;
      } catch (error) {
        if (signal.aborted) throw new NotGood('interrupted', goesOn, { last: seen });
        if (!(error instanceof NotGood) || !PASSING.includes(error.code)) throw error;
        if (silentSince === undefined) out.note('The gateway does not answer; what was begun goes on when it is back.');
        silentSince ??= performance.now();
        if (performance.now() - silentSince > PATIENCE_WITH_SILENCE_MS)
          throw new NotGood(error.code, `${error.message}\n${goesOn}`, { last: seen });
      }
    }
  } finally {
    release?.();
  }
}
