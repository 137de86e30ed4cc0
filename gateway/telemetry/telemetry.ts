import type { Logger } from 'pino';
import type { Span, SpanName, SpanResult, SpanSubject, Telemetry, TraceContext } from '../domain/telemetry.ts';
import { toTraceContext } from '../domain/telemetry.ts';
import type { Metrics } from './metrics.ts';
import type { Traced, Tracing } from './tracing.ts';

/**
 * Sees where calls spend their time: in histograms always, in spans where somebody collects them, and in one line of the log
 * for each call. It is told names and outcomes, never arguments or results.
 */
export class TelemetryRecorder implements Telemetry {
  readonly #metrics: Metrics;
  readonly #tracing: Tracing | undefined;
  readonly #log: Logger;

  constructor(metrics: Metrics, tracing: Tracing | undefined, log: Logger) {
    this.#metrics = metrics;
    this.#tracing = tracing;
    this.#log = log;
  }

  begin(name: SpanName, about: SpanSubject, parent: Span | TraceContext): Span {
    const above = toTraceContext(parent);
    const traced = this.#tracing?.begin(name, about, above);
    const whole = parent instanceof Watched ? parent.whole : undefined;
    return new Watched(name, about, whole, traced, above, this.#ended);
  }

  readonly #ended = (watched: Watched, result: SpanResult): void => {
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

const NOTHING: SpanResult = {};

class Watched implements Span {
  readonly name: SpanName;
  readonly about: SpanSubject;
  readonly trace: TraceContext;
  /** The call that this is part of. */
  readonly whole: Watched;
  /** How long it took; not known before its end. */
  ms = 0;
  readonly #began = performance.now();
  readonly #traced: Traced | undefined;
  readonly #whenEnded: (watched: Watched, result: SpanResult) => void;
  /** What of the whole is over, in the order in which it ended. */
  readonly #over: Watched[];
  #isOver = false;

  constructor(
    name: SpanName,
    about: SpanSubject,
    whole: Watched | undefined,
    traced: Traced | undefined,
    above: TraceContext,
    whenEnded: (watched: Watched, result: SpanResult) => void,
  ) {
    this.name = name;
    this.about = about;
    this.whole = whole ?? this;
    this.trace = traced === undefined ? above : traced.trace;
    this.#traced = traced;
    this.#whenEnded = whenEnded;
    this.#over = whole === undefined ? [] : whole.#over;
  }

  end(result: SpanResult = NOTHING): void {
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

function traceIdOf({ traceparent }: TraceContext): string | undefined {
  return traceparent?.split('-')[1];
}
