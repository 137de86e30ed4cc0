import type { Logger } from 'pino';
import type { About, Result, Stint, StintName, Trace, Watch } from './domain/watch.ts';
import { traceOf } from './domain/watch.ts';
import type { Metrics } from './metrics.ts';
import type { Traced, Tracing } from './tracing.ts';

/**
 * Sees where calls spend their time: in histograms always, in spans where somebody collects them, and in one line of the log
 * for each call. It is told names and outcomes, never arguments or results.
 */
export class Telemetry implements Watch {
  readonly #metrics: Metrics;
  readonly #tracing: Tracing | undefined;
  readonly #log: Logger;

  constructor(metrics: Metrics, tracing: Tracing | undefined, log: Logger) {
    this.#metrics = metrics;
    this.#tracing = tracing;
    this.#log = log;
  }

  begin(name: StintName, about: About, parent: Stint | Trace): Stint {
    const above = traceOf(parent);
    const traced = this.#tracing?.begin(name, about, above);
    const whole = parent instanceof Watched ? parent.whole : undefined;
    return new Watched(name, about, whole, traced, above, this.#ended);
  }

  readonly #ended = (watched: Watched, result: Result): void => {
    const { name, about } = watched;
    this.#metrics.stint(name, about.tool, watched.ms / 1000);
    if (watched.whole !== watched) return;
    if (name === 'call') this.#metrics.call(about.tool, result);
    if (!this.#log.isLevelEnabled('info')) return;
    const { tool, agent } = about;
    const line = { tool, agent, as: name, ms: watched.spent(), trace: traceIdOf(watched.trace) };
    // Not a spread: V8 makes an object of that which takes pino twice as long to write.
    this.#log.info(Object.assign({}, result, line), 'call');
  };
}

const NOTHING: Result = {};

class Watched implements Stint {
  readonly name: StintName;
  readonly about: About;
  readonly trace: Trace;
  /** The call that this is part of. */
  readonly whole: Watched;
  /** How long it took; not known before its end. */
  ms = 0;
  readonly #began = performance.now();
  readonly #traced: Traced | undefined;
  readonly #whenEnded: (watched: Watched, result: Result) => void;
  /** What of the whole is over, in the order in which it ended. */
  readonly #over: Watched[];
  #isOver = false;

  constructor(
    name: StintName,
    about: About,
    whole: Watched | undefined,
    traced: Traced | undefined,
    above: Trace,
    whenEnded: (watched: Watched, result: Result) => void,
  ) {
    this.name = name;
    this.about = about;
    this.whole = whole ?? this;
    this.trace = traced === undefined ? above : traced.trace;
    this.#traced = traced;
    this.#whenEnded = whenEnded;
    this.#over = whole === undefined ? [] : whole.#over;
  }

  end(result: Result = NOTHING): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.ms = performance.now() - this.#began;
    this.#over.push(this);
    this.#traced?.end(result);
    this.#whenEnded(this, result);
  }

  /** Milliseconds by station. */
  spent(): Record<string, number> {
    const spent: Record<string, number> = {};
    for (const { name, ms } of this.#over) spent[name] = (spent[name] ?? 0) + ms;
    for (const name of Object.keys(spent)) spent[name] = Math.round((spent[name] ?? 0) * 100) / 100;
    return spent;
  }
}

function traceIdOf({ traceparent }: Trace): string | undefined {
  return traceparent?.split('-')[1];
}
