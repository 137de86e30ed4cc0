/** A W3C trace context, from whoever asks to whoever is asked. */
export interface Trace {
  readonly traceparent?: string;
  readonly tracestate?: string;
  readonly baggage?: string;
}

/** Where the time of a call goes; `call` is all of it as its caller sees it, `recover` and `undo` all of it without one. */
export const STINTS = ['call', 'decide', 'vote', 'claim', 'wait', 'send', 'settle', 'recover', 'undo'] as const;
export type StintName = (typeof STINTS)[number];

export interface About {
  readonly tool: string;
  readonly agent: string;
  readonly txn?: string;
}

export type Result = Readonly<Record<string, string | number | boolean>>;

/** Something that takes time, from its beginning to its end. */
export interface Stint {
  /** What everything below it continues, here and at the upstream. */
  readonly trace: Trace;
  end(result?: Result): void;
}

/** Sees where time goes. It changes nothing, and never sees arguments or results. */
export interface Watch {
  begin(name: StintName, about: About, parent: Stint | Trace): Stint;
}

/** Nobody looks; what came from outside is still carried on. */
export const UNWATCHED: Watch = {
  begin: (_name, _about, parent) => ({ trace: traceOf(parent), end: () => {} }),
};

export function traceOf(parent: Stint | Trace): Trace {
  return 'end' in parent ? parent.trace : parent;
}

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const PRINTABLE = /^[\t\x20-\x7e]+$/;

/** What of it can be carried on. As the standard asks, what is malformed is as if it were not there. */
export function readTrace(read: (name: string) => string | undefined): Trace {
  const traceparent = read('traceparent');
  const tracestate = read('tracestate');
  const baggage = read('baggage');
  const isTraced = traceparent !== undefined && TRACEPARENT.test(traceparent);
  const trace: { -readonly [Header in keyof Trace]: Trace[Header] } = {};
  if (isTraced) trace.traceparent = traceparent;
  if (isTraced && isShort(tracestate, 512)) trace.tracestate = tracestate;
  if (isShort(baggage, 8_192)) trace.baggage = baggage;
  return trace;
}

function isShort(text: string | undefined, most: number): text is string {
  return text !== undefined && text.length <= most && PRINTABLE.test(text);
}
