import { isDeepStrictEqual } from 'node:util';
import type { UpstreamEffect, UpstreamRequest } from './upstream.ts';

/** Everything that a test observed of one call from outside the gateway. */
export type ObservedCall = {
  txn: string;
  /** The id of this call at the upstream. If several calls share an id, `route` separates them. */
  id: string;
  kind: 'key' | 'idempotent' | 'probe' | 'none' | 'read';
  /** Oldest first, as one observer saw them. */
  states: string[];
  answers: ObservedAnswer[];
  /** Number of verdicts "not applied", by a probe or a person. Each permits one more attempt. */
  verdictsNotApplied: number;
  /** How long the upstream remembers the key. */
  lifetimeMs?: number;
  /** How long before the end of that lifetime the gateway stops sending. */
  marginMs?: number;
  /** If set (`DELETE /idempotent/objects`), only requests and effects of `id` on this route belong to the call. */
  route?: string;
  /** Further promises of simultaneous calls with one key and without faults. Equal answers are always checked. */
  expect?: { oneUnmarked?: boolean; oneSend?: boolean };
};

/** `replayed` is the `Idempotent-Replayed` header; problem bodies have no field for it. */
export type ObservedAnswer = { status: number; code?: string; body?: unknown; replayed?: boolean };

export type ObservedRequest = Pick<
  UpstreamRequest,
  'id' | 'method' | 'url' | 'route' | 'headers' | 'key' | 'bodySha256' | 'complete' | 'at'
>;
export type ObservedEffect = Pick<UpstreamEffect, 'n' | 'id' | 'route'>;

export type Observations = {
  calls: ObservedCall[];
  requests: ObservedRequest[];
  effects: ObservedEffect[];
  /** How often the upstream got a known key with another body. */
  mismatches?: number;
  /** Headers that may differ between attempts, beyond `date` and `connection`. */
  varyingHeaders?: string[];
};

const STATE_RANK = new Map([
  ...['held', 'ready', 'sending', 'in_doubt'].map((state, rank) => [state, rank] as const),
  ...['succeeded', 'failed', 'rejected', 'expired', 'cancelled'].map((state) => [state, 4] as const),
]);
const FINAL_RANK = 4;
const NO_EFFECT_STATES = new Set(['failed', 'rejected', 'expired', 'cancelled']);
const STATE_BY_ERROR_CODE = new Map([
  ['tool_failed', 'failed'],
  ['rejected', 'rejected'],
  ['expired', 'expired'],
  ['cancelled', 'cancelled'],
  ['in_doubt', 'in_doubt'],
]);

/** A call with its requests and effects at the upstream. */
type CallObservation = { call: ObservedCall; name: string; sends: ObservedRequest[]; effects: number };

/** Returns one message per violated invariant; an empty list means that all hold. */
export function checkInvariants(observations: Observations): string[] {
  const observed = observations.calls.map((call) => collectObservation(call, observations));
  const varying = new Set(['date', 'connection', ...(observations.varyingHeaders ?? []).map((h) => h.toLowerCase())]);
  const violations = observed.flatMap((observation) => [
    ...checkAtMostOnce(observation),
    ...checkSameRequest(observation, varying),
    ...checkStateMatchesEffects(observation),
    ...checkStateOrder(observation),
    ...checkFinalAnswers(observation),
    ...checkConcurrentCalls(observation),
  ]);
  violations.push(...checkKeysDiffer(observed));
  const mismatches = observations.mismatches ?? 0;
  if (mismatches > 0)
    violations.push(`same request: the upstream got a known key with another body ${formatTimes(mismatches)}`);
  return violations;
}

function collectObservation(call: ObservedCall, { requests, effects }: Observations): CallObservation {
  const belongsToCall = (entry: { id: string | null; route: string }) =>
    entry.id === call.id && (call.route === undefined || entry.route === call.route);
  // A probe reads the same id, but a read is not an attempt.
  const sends = requests.filter(
    (request) => belongsToCall(request) && request.method !== 'GET' && request.method !== 'HEAD',
  );
  const effectNumbers = new Set(effects.filter(belongsToCall).map((effect) => effect.n));
  const name = `call ${call.txn} (${call.kind}, id ${call.id})`;
  return { call, name, sends, effects: effectNumbers.size };
}

function checkAtMostOnce({ call, name, sends, effects }: CallObservation): string[] {
  if (call.kind !== 'probe' && call.kind !== 'none') return [];
  const violations: string[] = [];
  const allowed = 1 + call.verdictsNotApplied;
  if (sends.length > allowed) {
    violations.push(
      `at most once: ${name} was sent ${formatTimes(sends.length)}, allowed ${allowed} (1 + verdicts "not applied")`,
    );
  }
  if (effects > 1) violations.push(`at most once: ${name} had ${effects} effects, allowed 1`);
  return violations;
}

function checkSameRequest({ call, name, sends }: CallObservation, varying: Set<string>): string[] {
  const first = sends[0];
  if (call.kind !== 'key' || !first) return [];
  const violations: string[] = [];
  if (sends.some((send) => send.complete && send.key === null))
    violations.push(`same request: ${name} was sent without a key`);
  const checkEqual = (part: string, read: (send: ObservedRequest) => unknown, among = sends) => {
    const reference = among[0];
    const other = among.findIndex((send) => reference && !isDeepStrictEqual(read(send), read(reference)));
    if (other > 0) violations.push(`same request: ${name}: attempt ${other + 1} has another ${part} than the first`);
  };
  const completeSends = sends.filter((send) => send.complete);
  checkEqual('key', (send) => send.key, completeSends);
  checkEqual('body', (send) => send.bodySha256, completeSends);
  checkEqual('method or URL', (send) => `${send.method} ${send.url}`);
  checkEqual('set of headers', (send) =>
    Object.entries(send.headers)
      .filter(([header]) => !varying.has(header))
      .sort(),
  );
  if (call.lifetimeMs !== undefined) {
    const started = Math.min(...sends.map((send) => send.at));
    const last = Math.max(...sends.map((send) => send.at)) - started;
    const allowed = call.lifetimeMs - (call.marginMs ?? 0);
    if (last > allowed)
      violations.push(`same request: ${name} was sent again ${last} ms after its first send, allowed ${allowed} ms`);
  }
  return violations;
}

function checkKeysDiffer(observations: CallObservation[]): string[] {
  const firstUsers = new Map<string, CallObservation>();
  const violations = new Set<string>();
  for (const observation of observations.filter(({ call }) => call.kind === 'key')) {
    for (const { key } of observation.sends) {
      if (key === null) continue;
      const firstUser = firstUsers.get(key) ?? observation;
      firstUsers.set(key, firstUser);
      if (firstUser.call.txn !== observation.call.txn)
        violations.add(`same request: ${observation.name} and ${firstUser.name} were sent under one key, ${key}`);
    }
  }
  return [...violations];
}

/** Reads the state from an answer; undefined if the answer does not tell it. */
function inferState({ status, code, body }: ObservedAnswer): string | undefined {
  const stated = readField(body, 'state');
  if (typeof stated === 'string') return stated;
  if (status === 200) return 'succeeded';
  return STATE_BY_ERROR_CODE.get(code ?? String(readField(body, 'code')));
}

function checkStateMatchesEffects({ call, name, effects }: CallObservation): string[] {
  const last = call.states.at(-1);
  const answeredStates = call.answers
    .map(inferState)
    .filter((state) => state !== undefined && STATE_RANK.get(state) === FINAL_RANK);
  const violations: string[] = [];
  for (const state of new Set([...(last === undefined ? [] : [last]), ...answeredStates])) {
    if (state === undefined || areEffectsConsistent(call, state, effects)) continue;
    violations.push(`true state: ${name} is ${state}, but had ${effects} effects`);
  }
  return violations;
}

function areEffectsConsistent(call: ObservedCall, state: string, effects: number): boolean {
  if (call.kind === 'read' || NO_EFFECT_STATES.has(state)) return effects === 0;
  if (state === 'succeeded' && wasAlreadySatisfied(call)) return effects === 0;
  // An `idempotent` tool may be repeated, so its success means one effect or more.
  if (state === 'succeeded') return call.kind === 'idempotent' ? effects >= 1 : effects === 1;
  return call.kind === 'idempotent' || effects <= 1;
}

/** The gateway observed the requested state before the send, so the call succeeded without a send. */
function wasAlreadySatisfied(call: ObservedCall): boolean {
  return call.answers.some((answer) => readField(answer.body, 'outcome') === 'already_satisfied');
}

function checkStateOrder({ call, name }: CallObservation): string[] {
  const violations: string[] = [];
  for (const [i, state] of call.states.entries()) {
    const rank = STATE_RANK.get(state);
    const before = call.states[i - 1];
    if (rank === undefined) violations.push(`state history: ${name} was seen in the unknown state "${state}"`);
    if (rank === undefined || before === undefined || before === state) continue;
    const rankBefore = STATE_RANK.get(before) ?? -1;
    if (rankBefore === FINAL_RANK)
      violations.push(`state history: ${name} left the final state ${before} for ${state}`);
    else if (rank < rankBefore) violations.push(`state history: ${name} went backwards from ${before} to ${state}`);
  }
  const finals = new Set(
    [...call.states, ...call.answers.map(inferState)].filter((s) => s && STATE_RANK.get(s) === FINAL_RANK),
  );
  if (finals.size > 1)
    violations.push(`state history: ${name} was reported as ${[...finals].join(' and ')}, and both are final`);
  return violations;
}

function checkFinalAnswers({ call, name }: CallObservation): string[] {
  const successes = call.answers.filter((answer) => answer.status === 200);
  return findDifferingAnswers(successes).map(
    (i) => `stable result: ${name}: success ${i + 1} of ${successes.length} differs from the first`,
  );
}

function checkConcurrentCalls({ call, name, sends }: CallObservation): string[] {
  const violations: string[] = [];
  const finals = call.answers.filter((answer) => STATE_RANK.get(inferState(answer) ?? '') === FINAL_RANK);
  for (const i of findDifferingAnswers(finals)) {
    violations.push(`one call per key: ${name}: final answer ${i + 1} of ${finals.length} is not equal to the first`);
  }
  const unmarked = finals.filter((answer) => !(answer.replayed ?? readField(answer.body, 'replayed') === true));
  if (call.expect?.oneUnmarked && unmarked.length !== 1) {
    violations.push(
      `one call per key: ${name}: ${unmarked.length} of ${finals.length} final answers are not marked as replays, expected 1`,
    );
  }
  if (call.expect?.oneSend && sends.length !== 1)
    violations.push(`one call per key: ${name} was sent ${formatTimes(sends.length)}, expected once`);
  return violations;
}

/** Returns the indexes of the answers that differ from the first. The replay mark is ignored. */
function findDifferingAnswers(answers: ObservedAnswer[]): number[] {
  const comparable = answers.map(({ status, code, body }) => [
    status,
    code ?? readField(body, 'code'),
    omitReplayedFlag(body),
  ]);
  return [...comparable.keys()].filter((i) => !isDeepStrictEqual(comparable[i], comparable[0]));
}

function omitReplayedFlag(body: unknown): unknown {
  if (body === null || typeof body !== 'object' || Array.isArray(body)) return body;
  const { replayed: _, ...rest } = body as Record<string, unknown>;
  return rest;
}

function readField(body: unknown, name: string): unknown {
  return body !== null && typeof body === 'object' ? (body as Record<string, unknown>)[name] : undefined;
}

const formatTimes = (n: number) => (n === 1 ? 'once' : `${n} times`);
