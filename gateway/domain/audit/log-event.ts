import { CALL_STATES, type CallState } from '../calls/call-state.ts';
import type { Json, JsonObject } from '../json.ts';

/** An event of the server-sent event stream that people subscribe to. Most events stand for one entry of the audit log. */
export interface LogEvent {
  /** The index of the log entry; null for an event without an entry. */
  readonly id: number | null;
  readonly name: EventName;
  readonly data: JsonObject;
}

/** `gap` stands for skipped entries. `bye` ends the stream. */
export const EVENT_NAMES = [
  'call',
  'approval',
  'refusal',
  'undo',
  'saga',
  'run',
  'switch',
  'breaker',
  'policies',
  'pin',
  'process',
  'log',
  'checkpoint',
  'gap',
  'bye',
] as const;
export type EventName = (typeof EVENT_NAMES)[number];

/** Maps the `what` of an entry to an event name; the first match wins. An entry that matches nothing becomes `log`. */
const EVENT_NAME_PATTERNS: readonly (readonly [RegExp, EventName])[] = [
  [/^(?:call_(?:held|rejected|expired|unopposed)|vote)$/, 'approval'],
  [/^call_erased$/, 'log'],
  [/^(?:call_|attempt_|verdict$|contradiction$)/, 'call'],
  [/^(?:saga_|savepoint$)/, 'saga'],
  [/^undo_/, 'undo'],
  [/^(?:run_|fenced$)/, 'run'],
  [/^(?:frozen|unfrozen)$/, 'switch'],
  [/^breaker_/, 'breaker'],
  [/^policies_/, 'policies'],
  [/^(?:tool_pinned|tool_changed|pin_accepted)$/, 'pin'],
  [/^(?:denied|unknown_tool|rate_limited|over_budget|locked|refused)$/, 'refusal'],
  [/^booted$/, 'process'],
];

/** The fields that an event copies from its entry: names and ids. Reasons and digests stay in the entry. */
const PUBLISHED_FIELDS = [
  'txn',
  'agent',
  'tool',
  'saga',
  'run',
  'epoch',
  'scope',
  'upstream',
  'person',
  'code',
  'verdict',
  'policyVersion',
  'process',
] as const;
const MAX_FIELD_CHARACTERS = 256;

/** Converts a log entry to an event with names, ids and times only. */
export function toLogEvent({ index, entry }: { readonly index: number; readonly entry: string }): LogEvent {
  const fields = JSON.parse(entry) as JsonObject;
  const what = String(fields['what']);
  const state = inferCallState(what);
  const published = PUBLISHED_FIELDS.flatMap((name) => {
    const value = fields[name];
    return isPublishable(value)
      ? [[name, typeof value === 'string' ? value.slice(0, MAX_FIELD_CHARACTERS) : value] as const]
      : [];
  });
  return {
    id: index,
    name: EVENT_NAME_PATTERNS.find(([pattern]) => pattern.test(what))?.[1] ?? 'log',
    data: {
      what,
      at: fields['at'] ?? null,
      ...Object.fromEntries(published),
      ...(state === undefined ? {} : { state }),
    },
  };
}

function isPublishable(value: Json | undefined): value is string | number {
  return typeof value === 'string' || typeof value === 'number';
}

/** The state of the call after the entry, if the entry determines it. */
function inferCallState(what: string): CallState | undefined {
  if (what === 'call_claimed' || what === 'undo_claimed') return 'sending';
  return CALL_STATES.find((state) => what === `call_${state}`);
}
