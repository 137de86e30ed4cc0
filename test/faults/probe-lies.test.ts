import { expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { useGateway } from '../support/use-gateway.ts';

/** A tool with one attempt and `settles: 0s`: the process that sends it also runs the probe. */
const buildHastyPolicy = (url: string) => `
upstreams:
  hasty: { adapter: http, url: "${url}", allowPrivate: true, breaker: { minimum: 1000 } }
tools:
  world.hasty:
    upstream: hasty
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: POST, path: /probed/orders, body: "\${args}" }
    once: { by: probe, probe: { tool: world.find, args: { id: "\${args.id}" }, applied: "result.found" }, settles: 0s }
    retry: { attempts: 1, base: 1ms, max: 1ms, within: 1h }
`;

const { upstream, gateway } = useGateway({
  policies: (url) => ({ ...buildFaultPolicies(url, { settles: '1500ms' }), 'hasty.yaml': buildHastyPolicy(url) }),
});

it('a probe that does not see the effect yet proves nothing before settles is over', async () => {
  const id = 'eventually';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ lie: 800 }, 'apply', 'drop'] });
  const answer = await gateway.call('world.probed', { id }, { key: id });
  expect(answer.status).toBe(200);
  expect(answer.body.attempts).toBe(1);
  expect(await upstream.effects(id)).toHaveLength(1);
});

it('an effect that happens after the connection was lost is found and not repeated', async () => {
  const id = 'late';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ 'late-apply': 700 }, 'drop'] });
  const answer = await gateway.call('world.probed', { id }, { key: id });
  expect(answer.status).toBe(200);
  expect(await upstream.effects(id)).toHaveLength(1);
});

it('a probe that fails leaves the call in doubt, and a later probe resolves it', async () => {
  const id = 'unreachable';
  await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', 'drop'] });
  await upstream.plan({ match: { id, method: 'GET' }, do: [{ reply: 500 }], times: 2 });
  const answer = await gateway.call('world.probed', { id }, { key: id });
  expect(answer.status).toBe(200);
  expect(await upstream.effects(id)).toHaveLength(1);
});

/** Expects that the call failed without an effect, and that a probe is the evidence. */
async function expectFailedByProbe(id: string, txn: string) {
  const { state, outcome, evidence, timeline } = (await gateway.admin('GET', `/admin/calls/${txn}`)).body;
  expect({ state, outcome, evidence }).toEqual({ state: 'failed', outcome: 'no_effect', evidence: 'probe' });
  expect(timeline.at(-1)).toMatchObject({ what: 'failed', evidence: 'probe' });
  expect(await upstream.effects(id)).toEqual([]);
}

it('a call fails if every probe says "not applied", and its detail names the status of the last attempt', async () => {
  const id = 'never';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ reply: 500 }], times: 'always' });
  const answer = await gateway.call('world.probed', { id }, { key: id, headers: { prefer: 'wait=40' } });
  expect(answer.body).toMatchObject({
    status: 502,
    code: 'tool_failed',
    detail: 'The upstream answered 500; the probe found no effect after 4 attempts.',
  });
  await expectFailedByProbe(id, answer.body.txn);
});

it('a call that a probe fails includes the upstream answer if the process still has it', async () => {
  const id = 'at-once';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ reply: 500, body: { reason: 'no' } }], times: 'always' });
  const answer = await gateway.call('world.hasty', { id }, { key: id });
  expect(answer.body).toMatchObject({
    code: 'tool_failed',
    detail: 'The upstream answered 500; the probe found no effect after 1 attempt.',
    upstream: { status: 500, body: { reason: 'no' } },
  });
  await expectFailedByProbe(id, answer.body.txn);
});

it('a failure says that the sending process ended only if it did', async () => {
  const id = 'orphan';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ event: 'arrived' }, 'hang'] });
  const pending = gateway.call('world.hasty', { id }, { key: id }).catch(() => undefined);
  await upstream.awaitEvent('arrived');
  await gateway.kill();
  await pending;
  await gateway.start();
  const answer = await gateway.call('world.hasty', { id }, { key: id });
  expect(answer.body).toMatchObject({
    code: 'tool_failed',
    detail: 'The process that sent it ended; the probe found no effect after 1 attempt.',
  });
  await expectFailedByProbe(id, answer.body.txn);
});
