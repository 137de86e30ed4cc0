import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { CALLS_WITH_STATE } from '../../support/call-rows.ts';
import { buildFaultPolicies } from '../../support/fault-policies.ts';
import { AGENT_KEY, type Gateway, keysYaml, OTHER_AGENT_KEY, type Reply } from '../../support/gateway.ts';
import { useGateway } from '../../support/use-gateway.ts';

const PATIENT_KEY = 'test-patient-key';

/** An upstream with concurrency 1. Further calls are claimed, and wait in the gateway. */
const narrow = (url: string) => `
upstreams:
  narrow: { adapter: http, url: "${url}", allowPrivate: true, timeout: 30s, concurrency: 1 }
tools:
  narrow.charge:
    upstream: narrow
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
agents:
  patient: { ${keysYaml(PATIENT_KEY)}, rules: [{ allow: narrow.charge }] }
`;

const { upstream, database, replicas } = useGateway({
  replicas: 3,
  policies: (url) => ({ ...buildFaultPolicies(url), 'narrow.yaml': narrow(url) }),
});
beforeEach(async () => {
  await postFreeze(replicas[0], 'unfreeze');
  await upstream.reset();
});

const postFreeze = (on: Gateway, verb: 'freeze' | 'unfreeze') => on.admin('POST', `/admin/${verb}`, { reason: verb });
/** Replicas with a valid lease that have not acknowledged the newest control flag. */
const findUnacknowledged = () =>
  database.query(
    'select id from processes, control_flag_version where control_flags_seen < version and lease_until > now() and ended_at is null',
  );
const charge = (gateway: Gateway, id: string) =>
  gateway.call('narrow.charge', { id }, { key: id, agentKey: PATIENT_KEY, headers: { prefer: 'wait=20' } });

/** Starts a call that waits in the upstream until it is released, and others that wait in the replica. */
async function queueAt(gateway: Gateway): Promise<{ sent: string; waiting: string[]; answers: Promise<Reply[]> }> {
  const sent = randomUUID();
  const waiting = Array.from({ length: 4 }, () => randomUUID());
  await upstream.plan({ match: { id: sent }, do: [{ event: `at-${sent}` }, { wait: sent }, 'apply', { reply: 200 }] });
  const chargeHere = (id: string) => charge(gateway, id);
  const first = chargeHere(sent);
  await upstream.awaitEvent(`at-${sent}`);
  const answers = Promise.all([first, ...waiting.map(chargeHere)]);
  const claimed = () =>
    database.query(`select txn from ${CALLS_WITH_STATE} where key = any($1) and state = 'sending'`, [waiting]);
  await expect.poll(claimed, { timeout: 20_000 }).toHaveLength(waiting.length);
  return { sent, waiting, answers };
}
const arrivedOf = async (ids: readonly string[]) =>
  (await upstream.requests()).filter(({ id }) => ids.includes(id ?? ''));

describe('a freeze', () => {
  it('stops three replicas under load: no call that is made after its answer, or not yet sent, ever arrives', async () => {
    const calls = new Map<string, { isAfterFreeze: boolean; status?: number }>();
    let isFrozen = false;
    let lateAnswers = 0;
    const sendCalls = async (gateway: Gateway, agentKey: string) => {
      while (lateAnswers < 60) {
        const id = randomUUID();
        const call: { isAfterFreeze: boolean; status?: number } = { isAfterFreeze: isFrozen };
        calls.set(id, call);
        call.status = (await gateway.call('world.keyed', { id }, { key: id, agentKey })).status;
        if (call.isAfterFreeze) lateAnswers += 1;
      }
    };
    const senders = Array.from({ length: 12 }, (_, k) =>
      sendCalls(replicas[k % 3] as Gateway, k % 2 === 0 ? AGENT_KEY : OTHER_AGENT_KEY),
    );
    await upstream.awaitEvent('received', 60);
    expect((await postFreeze(replicas[1], 'freeze')).status).toBe(200);
    isFrozen = true;
    expect(await findUnacknowledged()).toEqual([]);
    await Promise.all(senders);
    const arrived = (await upstream.requests()).map(({ id }) => id ?? '');
    expect(arrived.filter((id) => calls.get(id)?.isAfterFreeze !== false)).toEqual([]);
    const answered = (status: number) => [...calls].filter(([, call]) => call.status === status).map(([id]) => id);
    expect(answered(200).length + answered(503).length).toBe(calls.size);
    // Every sent call was answered, and every other call released its key.
    expect(answered(200).sort()).toEqual(arrived.sort());
    expect(await database.query('select txn from open_calls')).toEqual([]);
  });

  it('lets sent calls finish, and stops the calls that wait behind them', async () => {
    const queues = await Promise.all(replicas.map(queueAt));
    expect((await postFreeze(replicas[0], 'freeze')).status).toBe(200);
    for (const { sent, waiting, answers } of queues) {
      await upstream.release(sent);
      const [first, ...others] = await answers;
      expect(first?.status).toBe(200);
      expect(others.map(({ body }) => body.code)).toEqual(waiting.map(() => 'frozen'));
      expect(await arrivedOf(waiting)).toEqual([]);
    }
  });

  it('waits until the lease of a paused replica lapses, and that replica sends nothing when it resumes', async () => {
    const [one, , paused] = replicas;
    const { sent, waiting, answers } = await queueAt(paused);
    const rowOf = async () =>
      (
        await database.query<{ lapsed: boolean; behind: boolean }>(
          `select bool_and(lease_until <= now()) as lapsed, bool_and(control_flags_seen < version) as behind
             from processes, control_flag_version where pid = $1`,
          [paused.pid],
        )
      )[0];
    paused.signal('SIGSTOP');
    expect((await postFreeze(one, 'freeze')).status).toBe(200);
    // The paused replica never acknowledged the freeze, so its lease had to lapse first.
    expect(await rowOf()).toEqual({ lapsed: true, behind: true });
    paused.signal('SIGCONT');
    const askPaused = async () => (await paused.call('world.keyed', { id: 'x' }, { key: 'x' })).body.code;
    await expect.poll(askPaused, { timeout: 20_000 }).toBe('frozen');
    await upstream.release(sent);
    const succeeded = () =>
      database.query(`select 1 from ${CALLS_WITH_STATE} where key = $1 and state = 'succeeded'`, [sent]);
    await expect.poll(succeeded, { timeout: 20_000 }).toHaveLength(1);
    expect(await arrivedOf(waiting)).toEqual([]);
    // After the unfreeze, the replica that took the calls over may send them, each under its own key.
    await postFreeze(one, 'unfreeze');
    await answers;
    for (const id of [sent, ...waiting]) expect((await charge(one, id)).status).toBe(200);
    for (const id of [sent, ...waiting]) expect(await upstream.effects(id)).toHaveLength(1);
  });
});
