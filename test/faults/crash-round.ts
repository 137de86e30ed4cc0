import { setTimeout as sleep } from 'node:timers/promises';
import type { Gateway, Reply } from '../support/gateway.ts';
import { checkInvariants, type ObservedCall } from './checker.ts';
import type { TestUpstream, UpstreamFaultPlan } from './upstream.ts';

export type OnceKind = 'key' | 'idempotent' | 'probe' | 'none' | 'read';

export const TOOL_BY_KIND: Readonly<Record<OnceKind, string>> = {
  key: 'world.keyed',
  idempotent: 'world.put',
  probe: 'world.probed',
  none: 'world.none',
  read: 'world.read',
};

export interface PlannedCall {
  readonly id: string;
  readonly kind: OnceKind;
  readonly plans?: readonly Omit<UpstreamFaultPlan, 'match'>[];
}

export interface CrashRoundOptions {
  readonly gateway: Gateway;
  readonly upstream: TestUpstream;
  readonly calls: readonly PlannedCall[];
  /** Environments of the lives of the gateway that must end by themselves, in order; the last life goes on. */
  readonly deaths: readonly Readonly<Record<string, string>>[];
  /** Kill from outside, this long after the calls went out, instead of waiting for a life to end by itself. */
  readonly killAfterMs?: number;
  readonly restWithinMs?: number;
}

export interface CrashRoundResult {
  readonly violations: readonly string[];
  /** Calls whose caller heard nothing because the gateway died under it. */
  readonly killedInFlight: number;
}

interface CallRecord {
  readonly planned: PlannedCall;
  readonly states: string[];
  readonly answers: Reply[];
  txn: string;
}

/**
 * One crash: the calls go out, the gateway dies (again and again), comes back, and every call must come to rest by
 * itself; then the agent asks again with the same keys. Tells the invariants that did not hold, as sentences.
 */
export async function runCrashRound(round: CrashRoundOptions): Promise<CrashRoundResult> {
  const { gateway, upstream, calls } = round;
  const seen = calls.map((planned): CallRecord => ({ planned, states: [], answers: [], txn: '' }));
  for (const { id, kind, plans } of calls) {
    for (const plan of plans ?? [])
      await upstream.plan({ ...plan, match: kind === 'probe' ? { id, method: 'POST' } : { id } });
  }

  const [first, ...later] = round.deaths;
  await gateway.start(first);
  const asked = Promise.all(seen.map((call) => sendCall(gateway, call)));
  if (round.killAfterMs !== undefined) {
    await sleep(round.killAfterMs);
    gateway.signal('SIGKILL');
  }
  await Promise.race([gateway.waitForExit(), asked]);
  if (gateway.isAlive) await gateway.kill();
  await asked;
  const killedInFlight = seen.filter((call) => call.answers.length === 0).length;
  for (const life of later) {
    gateway.launch(life);
    await Promise.race([gateway.waitForExit(), sleep(8_000, undefined, { ref: false })]);
    if (gateway.isAlive) await gateway.kill();
  }

  await gateway.start();
  await waitUntilSettled(gateway, seen, round.restWithinMs ?? 15_000);
  await Promise.all(seen.map((call) => sendCall(gateway, call)));
  await Promise.all(seen.map((call) => sendCall(gateway, call)));
  return { violations: await findViolations(round, seen), killedInFlight };
}

async function sendCall(gateway: Gateway, seen: CallRecord): Promise<void> {
  const { id, kind } = seen.planned;
  try {
    const answer = await gateway.call(TOOL_BY_KIND[kind], { id }, { key: id, headers: { prefer: 'wait=20' } });
    seen.answers.push(answer);
    seen.txn ||= answer.headers.get('oncegate-txn') ?? '';
    const state = answer.headers.get('oncegate-state');
    if (state !== null) seen.states.push(state);
  } catch {
    // The gateway died under the request: the agent knows nothing, which is the point.
  }
}

/** Watches every open call until it is final, or in doubt with nobody but a person left to tell. */
async function waitUntilSettled(gateway: Gateway, seen: readonly CallRecord[], withinMs: number): Promise<void> {
  const byKey = new Map(seen.map((call) => [call.planned.id, call]));
  const until = performance.now() + withinMs;
  for (;;) {
    let open = 0;
    for (let cursor: string | null = ''; cursor !== null; ) {
      const page: Reply = await gateway.get(`/v1/calls?limit=200${cursor === '' ? '' : `&cursor=${cursor}`}`);
      for (const call of page.body.items) {
        const mine = byKey.get(call.key);
        if (mine === undefined) continue;
        mine.txn = call.txn;
        mine.states.push(call.state);
        const resting =
          call.settledAt !== null ||
          (call.state === 'in_doubt' && /person/.test(call.problem.detail)) ||
          call.state === 'held';
        if (!resting) open += 1;
      }
      cursor = page.body.cursor;
    }
    if (open === 0) return;
    if (performance.now() > until)
      throw new Error(`${open} calls did not come to rest within ${withinMs} ms\n${gateway.output}`);
    await sleep(50);
  }
}

async function findViolations(
  { upstream, gateway }: CrashRoundOptions,
  seen: readonly CallRecord[],
): Promise<string[]> {
  const observed: ObservedCall[] = [];
  const found: string[] = [];
  for (const { planned, states, answers, txn } of seen) {
    const final = await gateway.admin('GET', `/admin/calls/${txn}`);
    const verdicts = (final.body.timeline ?? []).filter(
      (event: { what: string }) => event.what === 'probe_not_applied',
    ).length;
    observed.push({
      txn,
      id: planned.id,
      kind: planned.kind,
      states: [...states, final.body.state],
      answers: answers.map((answer) => ({
        status: answer.status,
        code: answer.body?.code,
        body: answer.body,
        replayed: answer.headers.get('idempotent-replayed') === 'true',
      })),
      verdictsNotApplied: verdicts,
    });
    if (final.body.contradiction !== null && final.body.contradiction !== undefined)
      found.push(`${planned.id}: ${final.body.contradiction}`);
    // `none` alone may end in doubt; everything else must have been found out.
    if (planned.kind !== 'none' && final.body.state !== 'succeeded')
      found.push(`${planned.id} (${planned.kind}) ended as ${final.body.state}: ${JSON.stringify(final.body.problem)}`);
  }
  const ids = new Set(seen.map((call) => call.planned.id));
  const requests = (await upstream.requests()).filter(
    (request) => request.id !== null && request.id !== undefined && ids.has(request.id),
  );
  const effects = (await upstream.effects()).filter((effect) => effect.id !== null && ids.has(effect.id));
  return [...found, ...checkInvariants({ calls: observed, requests, effects })];
}
