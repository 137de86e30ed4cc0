import { isDeepStrictEqual } from 'node:util';
import type { UpstreamEffect, UpstreamRequest } from './upstream.ts';

/** What a test saw of one transaction, from outside. */
export type ObservedCall = {
  txn: string;
  /** The id by which the upstream tells this call from others; see `route` when several calls share one. */
  id: string;
  kind: 'key' | 'idempotent' | 'probe' | 'none' | 'read';
  /** In the order in which one observer saw them. */
  states: string[];
  answers: ObservedAnswer[];
  /** Recorded verdicts "not applied", a probe's or a person's: each permits one more attempt. */
  verdictsNotApplied: number;
  /** Of the upstream's key, with what the gateway keeps off its end. */
  lifetimeMs?: number;
  marginMs?: number;
  /** `DELETE /idempotent/objects`: only these requests and effects of `id` are this call's. */
  route?: string;
  /** What simultaneous same-key calls without faults promise beyond equal answers (I8). */
  expect?: { oneUnmarked?: boolean; oneSend?: boolean };
};

/** `replayed` is the `Idempotent-Replayed` header, where the body cannot say it. */
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

/** A call with everything the upstream saw of it. */
type CallObservation = { call: ObservedCall; name: string; sends: ObservedRequest[]; effects: number };

/** Every violated invariant as a sentence; an empty list is a pass. */
export function checkInvariants(observations: Observations): string[] {
  const cases = observations.calls.map((call) => collectObservation(call, observations));
  const varying = new Set(['date', 'connection', ...(observations.varyingHeaders ?? []).map((h) => h.toLowerCase())]);
  const violations = cases.flatMap((seen) => [
    ...checkAtMostOnce(seen),
    ...checkSameRequest(seen, varying),
    ...checkStateMatchesEffects(seen),
    ...checkStateOrder(seen),
    ...checkFinalAnswers(seen),
    ...checkConcurrentCalls(seen),
  ]);
  violations.push(...checkKeysDiffer(cases));
  const mismatches = observations.mismatches ?? 0;
  if (mismatches > 0) violations.push(`I2: the upstream got a known key with another body ${formatTimes(mismatches)}`);
  return violations;
}

function collectObservation(call: ObservedCall, { requests, effects }: Observations): CallObservation {
  const mine = (seen: { id: string | null; route: string }) =>
    seen.id === call.id && (call.route === undefined || seen.route === call.route);
  // A probe asks about the same id, but a read is no attempt.
  const sends = requests.filter((request) => mine(request) && request.method !== 'GET' && request.method !== 'HEAD');
  const distinct = new Set(effects.filter(mine).map((effect) => effect.n));
  const name = `call ${call.txn} (${call.kind}, id ${call.id})`;
  return { call, name, sends, effects: distinct.size };
}

function checkAtMostOnce({ call, name, sends, effects }: CallObservation): string[] {
  if (call.kind !== 'probe' && call.kind !== 'none') return [];
  const found: string[] = [];
  const allowed = 1 + call.verdictsNotApplied;
  if (sends.length > allowed) {
    found.push(`I1: ${name} was sent ${formatTimes(sends.length)}, allowed ${allowed} (1 + verdicts "not applied")`);
  }
  if (effects > 1) found.push(`I1: ${name} had ${effects} effects, allowed 1`);
  return found;
}

function checkSameRequest({ call, name, sends }: CallObservation, varying: Set<string>): string[] {
  const first = sends[0];
  if (call.kind !== 'key' || !first) return [];
  const found: string[] = [];
  if (sends.some((send) => send.complete && send.key === null)) found.push(`I2: ${name} was sent without a key`);
  const differ = (what: string, of: (send: ObservedRequest) => unknown, among = sends) => {
    const reference = among[0];
    const other = among.findIndex((send) => reference && !isDeepStrictEqual(of(send), of(reference)));
    if (other > 0) found.push(`I2: ${name}: attempt ${other + 1} has another ${what} than the first`);
  };
  const whole = sends.filter((send) => send.complete);
  differ('key', (send) => send.key, whole);
  differ('body', (send) => send.bodySha256, whole);
  differ('method or URL', (send) => `${send.method} ${send.url}`);
  differ('set of headers', (send) =>
    Object.entries(send.headers)
      .filter(([header]) => !varying.has(header))
      .sort(),
  );
  if (call.lifetimeMs !== undefined) {
    const started = Math.min(...sends.map((send) => send.at));
    const last = Math.max(...sends.map((send) => send.at)) - started;
    const allowed = call.lifetimeMs - (call.marginMs ?? 0);
    if (last > allowed) found.push(`I2: ${name} was sent again ${last} ms after its first send, allowed ${allowed} ms`);
  }
  return found;
}

function checkKeysDiffer(cases: CallObservation[]): string[] {
  const users = new Map<string, CallObservation>();
  const found = new Set<string>();
  for (const seen of cases.filter(({ call }) => call.kind === 'key')) {
    for (const { key } of seen.sends) {
      if (key === null) continue;
      const user = users.get(key) ?? seen;
      users.set(key, user);
      if (user.call.txn !== seen.call.txn)
        found.add(`I2: ${seen.name} and ${user.name} were sent under one key, ${key}`);
    }
  }
  return [...found];
}

/** What an answer says about the state; undefined: nothing. */
function inferState({ status, code, body }: ObservedAnswer): string | undefined {
  const stated = readField(body, 'state');
  if (typeof stated === 'string') return stated;
  if (status === 200) return 'succeeded';
  return STATE_BY_ERROR_CODE.get(code ?? String(readField(body, 'code')));
}

function checkStateMatchesEffects({ call, name, effects }: CallObservation): string[] {
  const last = call.states.at(-1);
  const said = call.answers
    .map(inferState)
    .filter((state) => state !== undefined && STATE_RANK.get(state) === FINAL_RANK);
  const found: string[] = [];
  for (const state of new Set([...(last === undefined ? [] : [last]), ...said])) {
    if (state === undefined || areEffectsConsistent(call, state, effects)) continue;
    found.push(`I5: ${name} is ${state}, but had ${effects} effects`);
  }
  return found;
}

function areEffectsConsistent(call: ObservedCall, state: string, effects: number): boolean {
  if (call.kind === 'read' || NO_EFFECT_STATES.has(state)) return effects === 0;
  // Repeating a `idempotent` tool is harmless: only "none at all" and "some" can be told apart.
  if (state === 'succeeded' && wasAlreadySatisfied(call)) return effects === 0;
  if (state === 'succeeded') return call.kind === 'idempotent' ? effects >= 1 : effects === 1;
  return call.kind === 'idempotent' || effects <= 1;
}

/** The gateway looked first and the world was already as asked: succeeded without a send. */
function wasAlreadySatisfied(call: ObservedCall): boolean {
  return call.answers.some((answer) => readField(answer.body, 'outcome') === 'already_satisfied');
}

function checkStateOrder({ call, name }: CallObservation): string[] {
  const found: string[] = [];
  for (const [i, state] of call.states.entries()) {
    const rank = STATE_RANK.get(state);
    const before = call.states[i - 1];
    if (rank === undefined) found.push(`I6: ${name} was seen in the unknown state "${state}"`);
    if (rank === undefined || before === undefined || before === state) continue;
    const rankBefore = STATE_RANK.get(before) ?? -1;
    if (rankBefore === FINAL_RANK) found.push(`I6: ${name} left the final state ${before} for ${state}`);
    else if (rank < rankBefore) found.push(`I6: ${name} went backwards from ${before} to ${state}`);
  }
  const finals = new Set(
    [...call.states, ...call.answers.map(inferState)].filter((s) => s && STATE_RANK.get(s) === FINAL_RANK),
  );
  if (finals.size > 1) found.push(`I6: ${name} was said to be ${[...finals].join(' and ')}, and both are final`);
  return found;
}

function checkFinalAnswers({ call, name }: CallObservation): string[] {
  const good = call.answers.filter((answer) => answer.status === 200);
  return findDifferingAnswers(good).map(
    (i) => `I6: ${name}: success ${i + 1} of ${good.length} differs from the first`,
  );
}

function checkConcurrentCalls({ call, name, sends }: CallObservation): string[] {
  const found: string[] = [];
  const finals = call.answers.filter((answer) => STATE_RANK.get(inferState(answer) ?? '') === FINAL_RANK);
  for (const i of findDifferingAnswers(finals)) {
    found.push(`I8: ${name}: final answer ${i + 1} of ${finals.length} is not equal to the first`);
  }
  const unmarked = finals.filter((answer) => !(answer.replayed ?? readField(answer.body, 'replayed') === true));
  if (call.expect?.oneUnmarked && unmarked.length !== 1) {
    found.push(
      `I8: ${name}: ${unmarked.length} of ${finals.length} final answers are not marked as replays, expected 1`,
    );
  }
  if (call.expect?.oneSend && sends.length !== 1)
    found.push(`I8: ${name} was sent ${formatTimes(sends.length)}, expected once`);
  return found;
}

/** The places of the answers that differ from the first in anything but the mark of a replay. */
function findDifferingAnswers(answers: ObservedAnswer[]): number[] {
  const bare = answers.map(({ status, code, body }) => [
    status,
    code ?? readField(body, 'code'),
    omitReplayedFlag(body),
  ]);
  return [...bare.keys()].filter((i) => !isDeepStrictEqual(bare[i], bare[0]));
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
