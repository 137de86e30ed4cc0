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
  /** The environment of each start of the gateway that ends in a death, in order. One more start without a death follows. */
  readonly deaths: readonly Readonly<Record<string, string>>[];
  /** If set, the round kills the gateway this long after it sent the calls, instead of waiting for a kill point. */
  readonly killAfterMs?: number;
  readonly settleWithinMs?: number;
}

export interface CrashRoundResult {
  readonly violations: readonly string[];
  /** Number of calls that got no answer because the gateway died. */
  readonly killedInFlight: number;
}

interface CallRecord {
  readonly planned: PlannedCall;
  readonly states: string[];
  readonly answers: Reply[];
  txn: string;
}

/**
 * Sends the calls and lets the gateway die once per entry of `deaths`. After the last start every call must settle by
 * itself. Then the agent repeats all calls with the same keys. Returns the violated invariants.
 */
export async function runCrashRound(round: CrashRoundOptions): Promise<CrashRoundResult> {
  const { gateway, upstream, calls } = round;
  const records = calls.map((planned): CallRecord => ({ planned, states: [], answers: [], txn: '' }));
  for (const { id, kind, plans } of calls) {
    for (const plan of plans ?? [])
      await upstream.plan({ ...plan, match: kind === 'probe' ? { id, method: 'POST' } : { id } });
  }

  const [first, ...later] = round.deaths;
  await gateway.start(first);
  const sent = Promise.all(records.map((record) => sendCall(gateway, record)));
  if (round.killAfterMs !== undefined) {
    await sleep(round.killAfterMs);
    gateway.signal('SIGKILL');
  }
  await Promise.race([gateway.waitForExit(), sent]);
  if (gateway.isAlive) await gateway.kill();
  await sent;
  const killedInFlight = records.filter((record) => record.answers.length === 0).length;
  for (const env of later) {
    gateway.launch(env);
    await Promise.race([gateway.waitForExit(), sleep(8_000, undefined, { ref: false })]);
    if (gateway.isAlive) await gateway.kill();
  }

  await gateway.start();
  await waitUntilSettled(gateway, records, round.settleWithinMs ?? 15_000);
  await Promise.all(records.map((record) => sendCall(gateway, record)));
  await Promise.all(records.map((record) => sendCall(gateway, record)));
  return { violations: await findViolations(round, records), killedInFlight };
}

async function sendCall(gateway: Gateway, record: CallRecord): Promise<void> {
  const { id, kind } = record.planned;
  try {
    const answer = await gateway.call(TOOL_BY_KIND[kind], { id }, { key: id, headers: { prefer: 'wait=20' } });
    record.answers.push(answer);
    record.txn ||= answer.headers.get('oncegate-txn') ?? '';
    const state = answer.headers.get('oncegate-state');
    if (state !== null) record.states.push(state);
  } catch {
    // The gateway died during the request, so the agent has no answer. The round expects that.
  }
}

/** Polls every open call until it is final, held, or in doubt until a person decides. */
async function waitUntilSettled(gateway: Gateway, records: readonly CallRecord[], withinMs: number): Promise<void> {
  const byKey = new Map(records.map((call) => [call.planned.id, call]));
  const deadline = performance.now() + withinMs;
  for (;;) {
    let open = 0;
    for (let cursor: string | null = ''; cursor !== null; ) {
      const page: Reply = await gateway.get(`/v1/calls?limit=200${cursor === '' ? '' : `&cursor=${cursor}`}`);
      for (const call of page.body.items) {
        const record = byKey.get(call.key);
        if (record === undefined) continue;
        record.txn = call.txn;
        record.states.push(call.state);
        const isSettled =
          call.settledAt !== null ||
          (call.state === 'in_doubt' && /person/.test(call.problem.detail)) ||
          call.state === 'held';
        if (!isSettled) open += 1;
      }
      cursor = page.body.cursor;
    }
    if (open === 0) return;
    if (performance.now() > deadline)
      throw new Error(`${open} calls did not settle within ${withinMs} ms.\n${gateway.output}`);
    await sleep(50);
  }
}

async function findViolations(
  { upstream, gateway }: CrashRoundOptions,
  records: readonly CallRecord[],
): Promise<string[]> {
  const observed: ObservedCall[] = [];
  const violations: string[] = [];
  for (const { planned, states, answers, txn } of records) {
    const final = await gateway.admin('GET', `/admin/calls/${txn}`);
    const verdictsNotApplied = (final.body.timeline ?? []).filter(
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
      verdictsNotApplied,
    });
    if (final.body.contradiction !== null && final.body.contradiction !== undefined)
      violations.push(`${planned.id}: ${final.body.contradiction}`);
    // Only a call of kind `none` may stay in doubt; the gateway must resolve every other doubt.
    if (planned.kind !== 'none' && final.body.state !== 'succeeded')
      violations.push(
        `${planned.id} (${planned.kind}) ended as ${final.body.state}: ${JSON.stringify(final.body.problem)}`,
      );
  }
  const ids = new Set(records.map((call) => call.planned.id));
  const requests = (await upstream.requests()).filter(
    (request) => request.id !== null && request.id !== undefined && ids.has(request.id),
  );
  const effects = (await upstream.effects()).filter((effect) => effect.id !== null && ids.has(effect.id));
  return [...violations, ...checkInvariants({ calls: observed, requests, effects })];
}
