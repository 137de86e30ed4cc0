import type { Logger } from 'pino';
import type { Span, SpanName, SpanResult, SpanSubject, Telemetry, TraceContext } from '../domain/telemetry.ts';
import { toTraceContext } from '../domain/telemetry.ts';
import type { Metrics } from './metrics.ts';
import type { TraceSpan, Tracing } from './tracing.ts';

/**
 * Records where calls spend their time: in histograms, in OpenTelemetry spans if a collector is configured, and in one log line
 * per call. It sees names and outcomes, never arguments or results.
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
    const parentTrace = toTraceContext(parent);
    const traceSpan = this.#tracing?.begin(name, about, parentTrace);
    const root = parent instanceof RecordedSpan ? parent.root : undefined;
    return new RecordedSpan(name, about, root, traceSpan, parentTrace, this.#handleEnd);
  }

  readonly #handleEnd = (span: RecordedSpan, result: SpanResult): void => {
    const { name, about } = span;
    this.#metrics.observeSpan(name, about.tool, span.ms / 1000);
    if (span.root !== span) return;
    if (name === 'call') this.#metrics.countCall(about.tool, result);
    if (!this.#log.isLevelEnabled('info')) return;
    const { tool, agent } = about;
    const line = { tool, agent, as: name, ms: span.sumDurations(), trace: getTraceId(span.trace) };
    // `Object.assign` instead of a spread: pino takes twice as long to write the object that V8 makes of a spread.
    this.#log.info(Object.assign({}, result, line), 'call');
  };
}

const NO_RESULT: SpanResult = {};

class RecordedSpan implements Span {
  readonly name: SpanName;
  readonly about: SpanSubject;
  readonly trace: TraceContext;
  /** The span of the whole call. */
  readonly root: RecordedSpan;
  /** The duration; 0 before the end. */
  ms = 0;
  readonly #startedAt = performance.now();
  readonly #traceSpan: TraceSpan | undefined;
  readonly #onEnd: (span: RecordedSpan, result: SpanResult) => void;
  /** The ended spans of the whole call, in the order of their ends. All spans of a call share this array. */
  readonly #endedSpans: RecordedSpan[];
  #hasEnded = false;

  constructor(
    name: SpanName,
    about: SpanSubject,
    root: RecordedSpan | undefined,
    traceSpan: TraceSpan | undefined,
    parentTrace: TraceContext,
    onEnd: (span: RecordedSpan, result: SpanResult) => void,
  ) {
    this.name = name;
    this.about = about;
    this.root = root ?? this;
    this.trace = traceSpan === undefined ? parentTrace : traceSpan.trace;
    this.#traceSpan = traceSpan;
    this.#onEnd = onEnd;
    this.#endedSpans = root === undefined ? [] : root.#endedSpans;
  }

  end(result: SpanResult = NO_RESULT): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.ms = performance.now() - this.#startedAt;
    this.#endedSpans.push(this);
    this.#traceSpan?.end(result);
    this.#onEnd(this, result);
  }

  /** The milliseconds per span name. */
  sumDurations(): Record<string, number> {
    const sums: Record<string, number> = {};
    for (const { name, ms } of this.#endedSpans) sums[name] = (sums[name] ?? 0) + ms;
    for (const name of Object.keys(sums)) sums[name] = Math.round((sums[name] ?? 0) * 100) / 100;
    return sums;
  }
}

function getTraceId({ traceparent }: TraceContext): string | undefined {
  return traceparent?.split('-')[1];
}
