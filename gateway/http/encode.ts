import type { FastifyReply } from 'fastify';
import type { UpstreamAnswer } from '../domain/attempts/adapter.ts';
import type { Call, CallEvent, CallSummary, Hold } from '../domain/calls/call.ts';
import { ERRORS, GatewayError, LedgerError } from '../domain/errors.ts';
import type { Json, JsonObject } from '../domain/json.ts';

/** RFC 9457. Where the error came from is not told; what to do about it is. */
export function sendProblem(reply: FastifyReply, error: GatewayError, instance: string): FastifyReply {
  const { status, retry } = ERRORS[error.code];
  const { txn, state, retryAfterSeconds } = error.extras;
  if (txn !== undefined) reply.header('oncegate-txn', txn);
  if (state !== undefined) reply.header('oncegate-state', state);
  const advice = error.extras.retry ?? retry;
  const after =
    retryAfterSeconds ??
    (advice === 'after_delay' || error.code === 'in_progress' || error.code === 'in_doubt' ? 1 : undefined);
  if (after !== undefined) reply.header('retry-after', String(after));
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
    return new GatewayError('unavailable', 'The ledger cannot be reached; nothing was sent.', { retryAfterSeconds: 1 });
  return undefined;
}

/** As fastify would write it: it need not be completed for each answer. */
const JSON_TEXT = 'application/json; charset=utf-8';

/** How a call stands, in the words of HTTP. */
export function sendCall(reply: FastifyReply, call: CallSummary, repeat: boolean, instance: string): FastifyReply {
  reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
  if (repeat) reply.header('idempotent-replayed', 'true');
  if (call.state !== 'succeeded') {
    const problem = problemOf(call, repeat);
    if (problem !== undefined) return sendProblem(reply, problem, instance);
    const wait = String(secondsToWait(call));
    reply.status(202).header('location', `/v1/calls/${call.txn}`).header('retry-after', wait);
  }
  return reply.header('content-type', JSON_TEXT).send(callText(call, repeat));
}

/** What is delayed leaves when it does; a person may come at any time. */
function secondsToWait({ hold }: CallSummary): number {
  return hold?.kind === 'delay' ? Math.max(1, Math.ceil(hold.leftMs / 1000)) : 1;
}

/** What a held call waits for, and until when. */
function holdJson({ kind, until }: Hold): JsonObject {
  return { kind, until: until.toISOString() };
}

/** The problem a call ended in, or is in; undefined when there is none to tell. */
export function problemOf(call: CallSummary, repeat: boolean): GatewayError | undefined {
  const { txn, state } = call;
  switch (state) {
    case 'succeeded':
    case 'held':
      return undefined;
    case 'ready':
    case 'sending':
      return repeat
        ? new GatewayError('in_progress', 'The first request of this call is still being carried out.', { txn, state })
        : undefined;
    case 'in_doubt': {
      const who = call.pursued
        ? 'The gateway is finding out; ask again with the same key.'
        : 'A person must find out and resolve it.';
      return new GatewayError('in_doubt', `${sentence(call.detail)} ${who}`.trim(), { txn, state });
    }
    default: {
      const upstream =
        call.answer === null ? {} : { upstream: { status: call.answer.status, body: resultJson(call.answer) } };
      // It is over, and its key stays with it: what could not be sent once is another call the next time.
      const advice = call.problem === 'unavailable' ? ({ retry: 'new_key' } as const) : {};
      return new GatewayError(call.problem ?? 'internal', sentence(call.detail) || describeFailure(call), {
        txn,
        state,
        members: upstream,
        ...advice,
      });
    }
  }
}

function describeFailure(call: CallSummary): string {
  if (call.answer !== null) return `The tool answered ${call.answer.status}, and nothing happened.`;
  return ERRORS[call.problem ?? 'internal'].title;
}

function sentence(text: string | null): string {
  if (text === null || text === '') return '';
  return `${text[0]?.toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`;
}

/** Outcomes without which a result would be misread. */
const TOLD_OUTCOMES = new Set(['body_unavailable', 'already_satisfied', 'observed', 'input_required']);

/** The body of a call. The result goes in as the upstream wrote it: parsing it would round its numbers. */
export function callText(call: CallSummary, replayed: boolean): string {
  const { txn, tool, state, outcome, saga, attempt, leaf } = call;
  const head = `{"txn":"${txn}","tool":${JSON.stringify(tool)},"state":"${state}","replayed":${replayed}`;
  const hold = call.hold == null ? '' : `,"hold":${JSON.stringify(holdJson(call.hold))}`;
  const told = outcome !== null && TOLD_OUTCOMES.has(outcome) ? `"outcome":"${outcome}",` : '';
  const place = saga === null ? 'null' : `"${saga}"`;
  const receipt = leaf === null ? 'null' : `{"leaf":"${leaf.toString('hex')}"}`;
  const tail = `${told}"saga":${place},"attempts":${attempt},"receipt":${receipt}}`;
  return `${head}${hold},"result":${resultText(call.answer)},${tail}`;
}

/** Whether a body that says it is JSON is; asked once of each answer, however often it is told. */
const written = new WeakMap<UpstreamAnswer, string>();

function resultText(answer: UpstreamAnswer | null): string {
  if (answer === null || answer.body === null) return 'null';
  let text = written.get(answer);
  if (text === undefined) {
    text = asJson(answer, answer.body);
    written.set(answer, text);
  }
  return text;
}

function asJson(answer: UpstreamAnswer, body: string): string {
  if (answer.encoding === 'base64') return JSON.stringify({ contentType: answer.contentType, base64: body });
  if (answer.contentType === null || /\bjson\b/i.test(answer.contentType)) {
    try {
      JSON.parse(body);
      return body;
    } catch {
      // It said JSON and is not: then it is text.
    }
  }
  return JSON.stringify(body);
}

/** As a value, to be written into a problem; what is nested too deeply to be written again stays text. */
export function resultJson(answer: UpstreamAnswer | null): Json {
  const value = JSON.parse(resultText(answer)) as Json;
  try {
    JSON.stringify(value);
    return value;
  } catch {
    return answer?.body ?? null;
  }
}

/** A call as a resource: what `GET` shows its agent, and more of it to a person. */
export function callView(call: Call, pursued: boolean, full: boolean): string {
  const problem = problemOf({ ...call, pursued }, false);
  const { txn, tool, state } = call;
  const hold = call.hold === null ? {} : { hold: holdJson(call.hold) };
  const head = { txn, tool, state, replayed: false, ...hold };
  // What a compensation carries may be what was observed, which its agent need not be allowed to see.
  const isHidden = !full && call.undoOf !== null;
  const tail = {
    outcome: call.outcome,
    problem: problem === undefined ? null : problemView(problem, isHidden),
    saga: call.saga,
    run: call.run,
    epoch: call.epoch,
    lockToken: call.lockToken,
    undo: undoView(call, full),
    ...(call.undoOf === null ? {} : { undoes: call.undoOf }),
    attempts: call.attempt,
    receipt: call.leaf === null ? null : { leaf: call.leaf.toString('hex') },
    key: call.key,
    args: call.args === null || isHidden ? null : (JSON.parse(call.args) as Json),
    createdAt: call.createdAt.toISOString(),
    settledAt: call.settledAt?.toISOString() ?? null,
    erasedAt: call.erasedAt?.toISOString() ?? null,
    ...(full ? personOnly(call) : {}),
  };
  const result = state === 'succeeded' && !isHidden ? resultText(call.answer) : 'null';
  return `${JSON.stringify(head).slice(0, -1)},"result":${result},${JSON.stringify(tail).slice(1)}`;
}

/** What the upstream answered with is hidden where the result would be. */
function problemView({ code, message: detail, extras }: GatewayError, isHidden: boolean): JsonObject {
  return isHidden ? { code, detail } : { code, detail, ...extras.members };
}

/** How a call is, would be, or was undone. Its arguments may tell what was observed, which is for people to see. */
export function undoView(
  call: Pick<Call, 'undo' | 'undoState' | 'undoTxn' | 'undoReason' | 'undoArgs'>,
  full: boolean,
): JsonObject {
  return {
    state: call.undoState,
    kind: call.undo?.kind ?? null,
    tool: call.undo?.tool ?? null,
    ...(full ? { args: call.undoArgs === null ? null : (JSON.parse(call.undoArgs) as Json) } : {}),
    txn: call.undoTxn,
    reason: call.undoReason,
  };
}

function personOnly(call: Call) {
  return {
    agent: call.agent,
    kind: call.kind,
    policyVersion: call.policyVersion,
    rule: call.rule,
    evidence: call.evidence,
    resolvedBy: call.resolvedBy,
    contradiction: call.contradiction,
    ownerDeaths: call.ownerDeaths,
    unresolved: call.unresolved,
  };
}

/** Everything known of how a call went, oldest first. */
export function timeline(
  call: Call,
  joined: readonly { readonly agent: string; readonly at: Date }[] = [],
): CallEvent[] {
  const isVote = ({ what }: CallEvent): boolean => what === 'vote';
  const events: CallEvent[] = [
    ...call.events.filter(isVote),
    { at: call.createdAt.toISOString(), what: call.attempt > 0 || call.state === 'sending' ? 'claimed' : 'held' },
  ];
  events.push(...call.events.filter((happened) => !isVote(happened)));
  if (call.settledAt !== null) {
    events.push({ at: call.settledAt.toISOString(), what: call.state, evidence: call.evidence, by: call.resolvedBy });
  }
  // Agents join at any time, also when all is over.
  for (const { agent, at } of joined) events.push({ at: at.toISOString(), what: 'joined', by: agent });
  return joined.length === 0 ? events : events.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
}
