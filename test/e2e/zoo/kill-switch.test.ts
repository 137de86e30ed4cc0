import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../../support/fault-policies.ts';
import { AGENT_KEY, type Gateway, keysYaml, OTHER_AGENT_KEY, type Reply } from '../../support/gateway.ts';
import { useGateway } from '../../support/use-gateway.ts';

const PATIENT_KEY = 'test-patient-key';

/** A service that takes one request of a replica at a time: the others are claimed, and wait in the gateway for their turn. */
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
  await flip(replicas[0], 'unfreeze');
  await upstream.reset();
});

const flip = (on: Gateway, verb: 'freeze' | 'unfreeze') => on.admin('POST', `/admin/${verb}`, { reason: verb });
/** Replicas that may send, and have not said that they saw the newest switch. */
const behind = () =>
  database.query(
    'select id from processes, switch_version where switches_seen < version and lease_until > now() and ended_at is null',
  );
const charge = (gateway: Gateway, id: string) =>
  gateway.call('narrow.charge', { id }, { key: id, agentKey: PATIENT_KEY, headers: { prefer: 'wait=20' } });

/** A call of this replica on the wire, until it is let go, and others that wait in the replica for their turn. */
async function queueAt(gateway: Gateway): Promise<{ wire: string; waiting: string[]; answers: Promise<Reply[]> }> {
  const wire = randomUUID();
  const waiting = Array.from({ length: 4 }, () => randomUUID());
  await upstream.plan({ match: { id: wire }, do: [{ event: `at-${wire}` }, { wait: wire }, 'apply', { reply: 200 }] });
  const ask = (id: string) => charge(gateway, id);
  const first = ask(wire);
  await upstream.awaitEvent(`at-${wire}`);
  const answers = Promise.all([first, ...waiting.map(ask)]);
  const claimed = () => database.query("select txn from calls where key = any($1) and state = 'sending'", [waiting]);
  await expect.poll(claimed, { timeout: 20_000 }).toHaveLength(waiting.length);
  return { wire, waiting, answers };
}
const arrivedOf = async (ids: readonly string[]) =>
  (await upstream.requests()).filter(({ id }) => ids.includes(id ?? ''));

describe('the kill switch', () => {
  it('stops three replicas under fire: what is asked for after its answer never arrives, and what did not leave never does', async () => {
    const asked = new Map<string, { afterwards: boolean; status?: number }>();
    let isThrown = false;
    let lateAnswers = 0;
    const fire = async (gateway: Gateway, agentKey: string) => {
      while (lateAnswers < 60) {
        const id = randomUUID();
        const call: { afterwards: boolean; status?: number } = { afterwards: isThrown };
        asked.set(id, call);
        call.status = (await gateway.call('world.keyed', { id }, { key: id, agentKey })).status;
        if (call.afterwards) lateAnswers += 1;
      }
    };
    const fires = Array.from({ length: 12 }, (_, k) =>
      fire(replicas[k % 3] as Gateway, k % 2 === 0 ? AGENT_KEY : OTHER_AGENT_KEY),
    );
    await upstream.awaitEvent('received', 60);
    expect((await flip(replicas[1], 'freeze')).status).toBe(200);
    isThrown = true;
    expect(await behind()).toEqual([]);
    await Promise.all(fires);
    const arrived = (await upstream.requests()).map(({ id }) => id ?? '');
    expect(arrived.filter((id) => asked.get(id)?.afterwards !== false)).toEqual([]);
    const answered = (status: number) => [...asked].filter(([, call]) => call.status === status).map(([id]) => id);
    expect(answered(200).length + answered(503).length).toBe(asked.size);
    // Each that was sent was answered, and each that was not is free again.
    expect(answered(200).sort()).toEqual(arrived.sort());
    expect(await database.query('select txn from open_calls')).toEqual([]);
  });

  it('lets what is on the wire come to its end, and nothing leave that waits behind it', async () => {
    const queues = await Promise.all(replicas.map(queueAt));
    expect((await flip(replicas[0], 'freeze')).status).toBe(200);
    for (const { wire, waiting, answers } of queues) {
      await upstream.release(wire);
      const [first, ...others] = await answers;
      expect(first?.status).toBe(200);
      expect(others.map(({ body }) => body.code)).toEqual(waiting.map(() => 'frozen'));
      expect(await arrivedOf(waiting)).toEqual([]);
    }
  });

  it('waits for a replica that is paused until it may send no more, and that one sends nothing when it wakes', async () => {
    const [one, , paused] = replicas;
    const { wire, waiting, answers } = await queueAt(paused);
    const rowOf = async () =>
      (
        await database.query<{ lapsed: boolean; behind: boolean }>(
          `select bool_and(lease_until <= now()) as lapsed, bool_and(switches_seen < version) as behind
             from processes, switch_version where pid = $1`,
          [paused.pid],
        )
      )[0];
    paused.signal('SIGSTOP');
    expect((await flip(one, 'freeze')).status).toBe(200);
    // It never said that it saw it: its right to send had to end first.
    expect(await rowOf()).toEqual({ lapsed: true, behind: true });
    paused.signal('SIGCONT');
    const askPaused = async () => (await paused.call('world.keyed', { id: 'x' }, { key: 'x' })).body.code;
    await expect.poll(askPaused, { timeout: 20_000 }).toBe('frozen');
    await upstream.release(wire);
    const succeeded = () => database.query("select 1 from calls where key = $1 and state = 'succeeded'", [wire]);
    await expect.poll(succeeded, { timeout: 20_000 }).toHaveLength(1);
    expect(await arrivedOf(waiting)).toEqual([]);
    // Whoever took them over may send them once it is lifted, each under its own key.
    await flip(one, 'unfreeze');
    await answers;
    for (const id of [wire, ...waiting]) expect((await charge(one, id)).status).toBe(200);
    for (const id of [wire, ...waiting]) expect(await upstream.effects(id)).toHaveLength(1);
  });
});
