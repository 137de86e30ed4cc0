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
    const traced = this.#tracing?.begin(name, about, traceOf(parent));
    const whole = parent instanceof Watched ? parent.whole : undefined;
    return new Watched(name, about, whole, traced, traceOf(parent), (watched, result) => this.#ended(watched, result));
  }

  #ended(watched: Watched, result: Result): void {
    const { name, about, seconds } = watched;
    this.#metrics.stint(name, about.tool, seconds);
    if (watched.whole !== watched) return;
    if (name === 'call') this.#metrics.call(about.tool, result);
    if (!this.#log.isLevelEnabled('info')) return;
    const { tool, agent } = about;
    this.#log.info({ ...result, tool, agent, as: name, ms: watched.spent(), trace: traceIdOf(watched.trace) }, 'call');
  }
}

class Watched implements Stint {
  readonly name: StintName;
  readonly about: About;
  readonly trace: Trace;
  /** The call that this is part of. */
  readonly whole: Watched;
  seconds = 0;
  readonly #began = performance.now();
  readonly #traced: Traced | undefined;
  readonly #whenEnded: (watched: Watched, result: Result) => void;
  readonly #parts: Record<string, number> = {};
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
    this.trace = traced?.trace ?? above;
    this.#traced = traced;
    this.#whenEnded = whenEnded;
  }

  end(result: Result = {}): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const ms = performance.now() - this.#began;
    this.seconds = ms / 1000;
    this.whole.#parts[this.name] = (this.whole.#parts[this.name] ?? 0) + ms;
    this.#traced?.end(result);
    this.#whenEnded(this, result);
  }

  /** Milliseconds by station. */
  spent(): Record<string, number> {
    return Object.fromEntries(Object.entries(this.#parts).map(([name, ms]) => [name, Math.round(ms * 100) / 100]));
  }
}

function traceIdOf({ traceparent }: Trace): string | undefined {
  return traceparent?.split('-')[1];
}
