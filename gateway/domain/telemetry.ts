/** A W3C trace context, from whoever asks to whoever is asked. */
export interface TraceContext {
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly baggage?: string;
}

/** Where the time of a call goes; `call` is all of it as its caller sees it, `recover` and `undo` all of it without one. */
export const SPAN_NAMES = ['call', 'decide', 'vote', 'claim', 'wait', 'send', 'settle', 'recover', 'undo'] as const;
export type SpanName = (typeof SPAN_NAMES)[number];

export interface SpanSubject {
  readonly tool: string;
  readonly agent: string;
  readonly txn?: string;
}

export type SpanResult = Readonly<Record<string, string | number | boolean>>;

/** Something that takes time, from its beginning to its end. */
export interface Span {
  /** What everything below it continues, here and at the upstream. */
  readonly trace: TraceContext;
  end(result?: SpanResult): void;
}

/** Sees where time goes. It changes nothing, and never sees arguments or results. */
export interface Telemetry {
  begin(name: SpanName, about: SpanSubject, parent: Span | TraceContext): Span;
}

/** Nobody looks; what came from outside is still carried on. */
export const NO_TELEMETRY: Telemetry = {
  begin: (_name, _about, parent) => ({ trace: toTraceContext(parent), end: () => {} }),
};

export function toTraceContext(parent: Span | TraceContext): TraceContext {
  return 'end' in parent ? parent.trace : parent;
}

const TRACEPARENT_PATTERN = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const PRINTABLE_PATTERN = /^[\t\x20-\x7e]+$/;

/** What of it can be carried on. As the standard asks, what is malformed is as if it were not there. */
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

function isPrintableWithin(text: string | undefined, most: number): text is string {
  return text !== undefined && text.length <= most && PRINTABLE_PATTERN.test(text);
}
