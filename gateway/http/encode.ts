import type { FastifyReply } from 'fastify';
import type { UpstreamAnswer } from '../domain/attempts/adapter.ts';
import { type CallEvent, type CallRecord, type Hold, isPursued } from '../domain/calls/call-record.ts';
import { ERRORS, GatewayError, LedgerError } from '../domain/errors.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { UndoView } from './schemas/call-schemas.ts';

/** Sends a problem document (RFC 9457). It says what to do and hides where in the gateway the error occurred. */
export function sendProblem(reply: FastifyReply, error: GatewayError, instance: string): FastifyReply {
  const { status, retry } = ERRORS[error.code];
  const { txn, state, retryAfterSeconds } = error.extras;
  if (txn !== undefined) reply.header('oncegate-txn', txn);
  if (state !== undefined) reply.header('oncegate-state', state);
  const advice = error.extras.retry ?? retry;
  const retryAfter =
    retryAfterSeconds ??
    (advice === 'after_delay' || error.code === 'in_progress' || error.code === 'in_doubt' ? 1 : undefined);
  if (retryAfter !== undefined) reply.header('retry-after', String(retryAfter));
  if (error.code === 'unauthenticated' && !reply.hasHeader('www-authenticate'))
    reply.header('www-authenticate', 'Bearer realm="oncegate"');
  return reply
    .status(status)
    .type('application/problem+json')
    .send(JSON.stringify(problemJson(error, instance)));
}

export function problemJson(error: GatewayError, instance: string): JsonObject {
  const { status, title, retry } = ERRORS[error.code];
  const { txn, state, members } = error.extras;
  return {
    type: `https://oncegate.dev/errors#${error.code}`,
    title,
    status,
    detail: error.message,
    instance: instance.split('?')[0] ?? instance,
    code: error.code,
    retry: error.extras.retry ?? retry,
    ...(txn === undefined ? {} : { txn }),
    ...(state === undefined ? {} : { state }),
    ...members,
  };
}

export function asGatewayError(error: unknown): GatewayError | undefined {
  if (error instanceof GatewayError) return error;
  if (error instanceof LedgerError)
    return new GatewayError('unavailable', 'The ledger cannot be reached. Nothing was sent.', { retryAfterSeconds: 1 });
  return undefined;
}

/** The complete header value, so that Fastify does not add the charset to each answer. */
const JSON_CONTENT_TYPE = 'application/json; charset=utf-8';

/** Sends the state of a call as an HTTP answer. */
export function sendCall(reply: FastifyReply, call: CallRecord, repeat: boolean, instance: string): FastifyReply {
  reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
  if (repeat) reply.header('idempotent-replayed', 'true');
  if (call.state !== 'succeeded') {
    const problem = problemOf(call, repeat);
    if (problem !== undefined) return sendProblem(reply, problem, instance);
    const retryAfter = String(retryAfterSeconds(call));
    reply.status(202).header('location', `/v1/calls/${call.txn}`).header('retry-after', retryAfter);
  }
  return reply.header('content-type', JSON_CONTENT_TYPE).send(callText(call, repeat));
}

/** A delayed call is sent at a known time. An approval can come at any time. */
function retryAfterSeconds({ hold }: CallRecord): number {
  return hold?.kind === 'delay' ? Math.max(1, Math.ceil(hold.leftMs / 1000)) : 1;
}

/** The reason and the end of a hold. */
function holdJson({ kind, until }: Hold): JsonObject {
  return { kind, until: until.toISOString() };
}

/** The problem of a call that failed, is in doubt or is in progress; undefined without a problem. */
export function problemOf(call: CallRecord, repeat: boolean): GatewayError | undefined {
  const { txn, state } = call;
  switch (state) {
    case 'succeeded':
    case 'held':
      return undefined;
    case 'ready':
    case 'sending':
      return repeat
        ? new GatewayError('in_progress', 'The first request of this call is still in progress.', { txn, state })
        : undefined;
    case 'in_doubt': {
      const nextStep = isPursued(call)
        ? 'The gateway is finding out. Ask again with the same key.'
        : 'A person must resolve it.';
      return new GatewayError('in_doubt', `${asSentence(call.detail)} ${nextStep}`.trim(), { txn, state });
    }
    default: {
      const upstream =
        call.answer === null ? {} : { upstream: { status: call.answer.status, body: resultJson(call.answer) } };
      // A final call keeps its key, so another try needs a new key.
      const advice = call.problem === 'unavailable' ? ({ retry: 'new_key' } as const) : {};
      return new GatewayError(call.problem ?? 'internal', asSentence(call.detail) || describeFailure(call), {
        txn,
        state,
        members: upstream,
        ...advice,
      });
    }
  }
}

function describeFailure(call: CallRecord): string {
  if (call.answer !== null) {
    const { status } = call.answer;
    const why = status >= 200 && status < 300 ? ', which its contract calls a failure' : '';
    return `The tool answered ${status}${why}, and nothing happened.`;
  }
  return ERRORS[call.problem ?? 'internal'].title;
}

function asSentence(text: string | null): string {
  if (text === null || text === '') return '';
  return `${text[0]?.toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`;
}

/** Outcomes that the answer must show: without them the result would be misread. */
const SHOWN_OUTCOMES = new Set(['accepted', 'body_unavailable', 'already_satisfied', 'observed', 'input_required']);

/** The body of a call. The result is inserted as the text of the upstream, because parsing would round its numbers. */
export function callText(call: CallRecord, replayed: boolean): string {
  const { txn, tool, state, outcome, saga, attempt, leaf } = call;
  const head = `{"txn":"${txn}","tool":${JSON.stringify(tool)},"state":"${state}","replayed":${replayed}`;
  const hold = call.hold === null ? '' : `,"hold":${JSON.stringify(holdJson(call.hold))}`;
  const shownOutcome = outcome !== null && SHOWN_OUTCOMES.has(outcome) ? `"outcome":"${outcome}",` : '';
  const sagaJson = saga === null ? 'null' : `"${saga}"`;
  const receipt = leaf === null ? 'null' : `{"leaf":"${leaf.toString('hex')}"}`;
  const tail = `${shownOutcome}"saga":${sagaJson},"attempts":${attempt},"receipt":${receipt}}`;
  return `${head}${hold},"result":${resultText(call.answer)},${tail}`;
}

/** The JSON text per upstream answer, so that each body is checked once, not at every replay. */
const jsonTexts = new WeakMap<UpstreamAnswer, string>();

function resultText(answer: UpstreamAnswer | null): string {
  if (answer === null || answer.body === null) return 'null';
  let text = jsonTexts.get(answer);
  if (text === undefined) {
    text = formatBody(answer, answer.body);
    jsonTexts.set(answer, text);
  }
  return text;
}

function formatBody(answer: UpstreamAnswer, body: string): string {
  if (answer.encoding === 'base64') return JSON.stringify({ contentType: answer.contentType, base64: body });
  if (answer.contentType === null || /\bjson\b/i.test(answer.contentType)) {
    try {
      JSON.parse(body);
      return body;
    } catch {
      // The body is not JSON although its content type says so: treat it as text.
    }
  }
  return JSON.stringify(body);
}

/** The result as a value, for a problem. A value too deep for JSON.stringify stays text. */
export function resultJson(answer: UpstreamAnswer | null): Json {
  const value = JSON.parse(resultText(answer)) as Json;
  try {
    JSON.stringify(value);
    return value;
  } catch {
    return answer?.body ?? null;
  }
}

/** A call as a resource. Given its events, the view has the members that only people see. */
export function callView(call: CallRecord, events?: readonly CallEvent[]): string {
  const problem = problemOf(call, false);
  const { txn, tool, state } = call;
  const hold = call.hold === null ? {} : { hold: holdJson(call.hold) };
  const head = { txn, tool, state, replayed: false, ...hold };
  // The arguments of a compensation may contain observed data that its agent may not see.
  const isHidden = events === undefined && call.undoOf !== null;
  const tail = {
    outcome: call.outcome,
    problem: problem === undefined ? null : problemView(problem, isHidden),
    saga: call.saga,
    run: call.run,
    epoch: call.epoch,
    lockToken: call.lockToken,
    undo: undoView(call, events !== undefined),
    ...(call.undoOf === null ? {} : { undoes: call.undoOf }),
    attempts: call.attempt,
    receipt: call.leaf === null ? null : { leaf: call.leaf.toString('hex') },
    key: call.key,
    args: call.args === null || isHidden ? null : (JSON.parse(call.args) as Json),
    createdAt: call.createdAt.toISOString(),
    settledAt: call.settledAt?.toISOString() ?? null,
    erasedAt: call.erasedAt?.toISOString() ?? null,
    ...(events === undefined ? {} : personOnlyView(call, events)),
  };
  const result = state === 'succeeded' && !isHidden ? resultText(call.answer) : 'null';
  return `${JSON.stringify(head).slice(0, -1)},"result":${result},${JSON.stringify(tail).slice(1)}`;
}

/** Hides the answer of the upstream wherever the result is hidden. */
function problemView({ code, message: detail, extras }: GatewayError, isHidden: boolean): JsonObject {
  return isHidden ? { code, detail } : { code, detail, ...extras.members };
}

/** The undo of a call. Its arguments may contain observed data, so only people see them. */
export function undoView(
  call: Pick<CallRecord, 'undo' | 'undoState' | 'undoTxn' | 'undoReason' | 'undoArgs'>,
  full: boolean,
): UndoView {
  return {
    state: call.undoState,
    kind: call.undo?.kind ?? null,
    tool: call.undo?.tool ?? null,
    ...(full ? { args: call.undoArgs === null ? null : (JSON.parse(call.undoArgs) as JsonObject) } : {}),
    txn: call.undoTxn,
    reason: call.undoReason,
  };
}

function personOnlyView(call: CallRecord, events: readonly CallEvent[]) {
  return {
    agent: call.agent,
    kind: call.kind,
    policyVersion: call.policyVersion,
    rule: call.rule,
    evidence: call.evidence,
    resolvedBy: call.settledAt === null ? call.retriedBy : call.resolvedBy,
    contradiction: events.find(({ what }) => what === 'contradiction')?.['detail'] ?? null,
    ownerDeaths: call.ownerDeaths,
    unresolved: call.unresolved,
  };
}

/** All events of a call, oldest first. */
export function timeline(
  call: CallRecord,
  recorded: readonly CallEvent[],
  participants: readonly { readonly agent: string; readonly at: Date }[] = [],
): CallEvent[] {
  const isVote = ({ what }: CallEvent): boolean => what === 'vote';
  const events: CallEvent[] = [
    ...recorded.filter(isVote),
    { at: call.createdAt.toISOString(), what: call.attempt > 0 || call.state === 'sending' ? 'claimed' : 'held' },
  ];
  const isAfterEnd = ({ what }: CallEvent): boolean => what === 'contradiction';
  events.push(...recorded.filter((event) => !isVote(event) && !isAfterEnd(event)));
  if (call.settledAt !== null) {
    events.push({ at: call.settledAt.toISOString(), what: call.state, evidence: call.evidence, by: call.resolvedBy });
  }
  events.push(...recorded.filter(isAfterEnd));
  // An agent can join a shared call at any time, also after it settled.
  for (const { agent, at } of participants) events.push({ at: at.toISOString(), what: 'joined', by: agent });
  return participants.length === 0 ? events : events.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
}
