/** A W3C trace context, passed from the caller to the upstream. */
export interface TraceContext {
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly baggage?: string;
}

/** The timed stages of a call. `call` is the whole call; `recover` and `undo` are whole calls that have no caller. */
export const SPAN_NAMES = ['call', 'decide', 'vote', 'claim', 'wait', 'send', 'settle', 'recover', 'undo'] as const;
export type SpanName = (typeof SPAN_NAMES)[number];

export interface SpanSubject {
  readonly tool: string;
  readonly agent: string;
  readonly txn?: string;
}

export type SpanResult = Readonly<Record<string, string | number | boolean>>;

/** A timed operation. */
export interface Span {
  /** The context that child spans continue, in the gateway and at the upstream. */
  readonly trace: TraceContext;
  end(result?: SpanResult): void;
}

/** Records spans. It never sees arguments or results. */
export interface Telemetry {
  begin(name: SpanName, about: SpanSubject, parent: Span | TraceContext): Span;
}

/** Records nothing, but passes the trace context on. */
export const NO_TELEMETRY: Telemetry = {
  begin: (_name, _about, parent) => ({ trace: toTraceContext(parent), end: () => {} }),
};

export function toTraceContext(parent: Span | TraceContext): TraceContext {
  return 'end' in parent ? parent.trace : parent;
}

const TRACEPARENT_PATTERN = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const PRINTABLE_PATTERN = /^[\t\x20-\x7e]+$/;

/** Parses the trace headers. Ignores malformed headers, as the W3C standard requires. */
export function parseTraceContext(read: (name: string) => string | undefined): TraceContext {
  const traceparent = read('traceparent');
  const tracestate = read('tracestate');
  const baggage = read('baggage');
  const isTraced = traceparent !== undefined && TRACEPARENT_PATTERN.test(traceparent);
  const trace: { -readonly [Header in keyof TraceContext]: TraceContext[Header] } = {};
  if (isTraced) trace.traceparent = traceparent;
  if (isTraced && isPrintableWithin(tracestate, 512)) trace.tracestate = tracestate;
  if (isPrintableWithin(baggage, 8_192)) trace.baggage = baggage;
  return trace;
}

function isPrintableWithin(text: string | undefined, maxLength: number): text is string {
  return text !== undefined && text.length <= maxLength && PRINTABLE_PATTERN.test(text);
}
