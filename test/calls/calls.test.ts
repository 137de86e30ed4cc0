import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, OTHER_AGENT_KEY } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const { upstream, gateway } = useGateway();
beforeEach(() => {
  id = uniqueId('case');
});

const countEffects = async () => (await upstream.effects(id)).length;

describe('a call', () => {
  it('succeeds, and is replayed under its key', async () => {
    const first = await gateway.call('world.keyed', { id }, { key: id });
    expect(first.status).toBe(200);
    expect(first.body).toMatchObject({
      tool: 'world.keyed',
      state: 'succeeded',
      replayed: false,
      saga: null,
      attempts: 1,
    });
    expect(first.body.txn).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    expect(first.body.receipt.leaf).toMatch(/^[0-9a-f]{64}$/);
    expect(first.headers.get('oncegate-txn')).toBe(first.body.txn);
    expect(first.headers.get('oncegate-state')).toBe('succeeded');
    expect(first.headers.get('idempotent-replayed')).toBeNull();

    const again = await gateway.call('world.keyed', { id }, { key: id });
    expect(again.status).toBe(200);
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect(again.body).toEqual({ ...first.body, replayed: true });
    expect(await countEffects()).toBe(1);
    const [sent] = await upstream.requests(id);
    expect(sent?.headers['idempotency-key']).toBe(first.body.txn);
  });

  it('is refused if its key was used with other arguments, and sends nothing', async () => {
    await gateway.call('world.keyed', { id }, { key: id });
    const other = await gateway.call('world.keyed', { id, n: 2 }, { key: id });
    expect(other.status).toBe(422);
    expect(other.body).toMatchObject({ code: 'key_reused', retry: 'new_key' });
    expect(other.headers.get('oncegate-txn')).toBe(other.body.txn);
    expect(other.headers.get('oncegate-state')).toBe('succeeded');
    expect(await countEffects()).toBe(1);
  });

  it('is replayed for the same bytes and for equal arguments, and for nothing else', async () => {
    const body = JSON.stringify({ id, note: '\ufffd' });
    const first = await gateway.call('world.keyed', body, { key: id });
    const replay = { ...first.body, replayed: true };
    expect((await gateway.call('world.keyed', body, { key: id })).body).toEqual(replay);
    expect((await gateway.call('world.keyed', ` {"note":"\ufffd","id":"${id}"}`, { key: id })).body).toEqual(replay);
    expect((await gateway.call('world__keyed', body, { key: `"${id}"` })).body).toEqual(replay);

    expect((await gateway.call('world.keyed_field', body, { key: id })).body.code).toBe('key_reused');
    const { saga } = (await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY })).body;
    const step = await gateway.call('world.keyed', body, { key: id, headers: { 'oncegate-saga': saga } });
    expect(step.body.code).toBe('key_reused');
    const headers = { authorization: `Bearer ${AGENT_KEY}`, 'content-type': 'application/json', 'idempotency-key': id };
    const notUtf8 = Buffer.concat([Buffer.from(`{"id":"${id}","note":"`), Buffer.of(0xff), Buffer.from('"}')]);
    const invalid = await fetch(`${gateway.url}/v1/tools/world.keyed`, { method: 'POST', headers, body: notUtf8 });
    expect(invalid.status).toBe(400);
    const theirs = await gateway.call('world.keyed', body, { key: id, agentKey: OTHER_AGENT_KEY });
    expect(theirs.body).toMatchObject({ state: 'succeeded', replayed: false });
    expect(await countEffects()).toBe(2);
  });

  it('does not share its key with a call of another agent', async () => {
    const mine = await gateway.call('world.keyed', { id }, { key: id });
    const theirs = await gateway.call('world.keyed', { id: `${id}-b` }, { key: id, agentKey: OTHER_AGENT_KEY });
    expect(theirs.status).toBe(200);
    expect(theirs.body.txn).not.toBe(mine.body.txn);
    expect((await gateway.get(`/v1/calls/${mine.body.txn}`, OTHER_AGENT_KEY)).status).toBe(404);
  });

  it('carries its key in the body if the tool says so', async () => {
    const answer = await gateway.call('world.keyed_field', { id }, { key: id });
    expect(answer.status).toBe(200);
    const [sent] = await upstream.requests(id);
    expect(JSON.parse(sent?.body ?? '')).toEqual({ id, meta: { key: answer.body.txn } });
  });

  it('that the tool refused answers 502 on every repeat, and has no effect', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 422 }] });
    const first = await gateway.call('world.keyed', { id }, { key: id });
    expect(first.status).toBe(502);
    expect(first.body).toMatchObject({ code: 'tool_failed', retry: 'new_key', upstream: { status: 422 } });
    const again = await gateway.call('world.keyed', { id }, { key: id });
    expect(again.status).toBe(502);
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect(again.body).toEqual(first.body);
    expect(await countEffects()).toBe(0);
    expect(await upstream.requests(id)).toHaveLength(1);
  });
});

describe('a call whose answer is lost', () => {
  it('is sent again with the same bytes if the tool has once: key', async () => {
    await upstream.plan({ match: { id }, do: ['apply', 'drop'] });
    const answer = await gateway.call('world.keyed', { id }, { key: id });
    expect(answer.status).toBe(200);
    expect(answer.body.attempts).toBe(2);
    const requests = await upstream.requests(id);
    expect(requests).toHaveLength(2);
    expect(requests[0]?.headers).toEqual(requests[1]?.headers);
    expect(requests[0]?.bodySha256).toBe(requests[1]?.bodySha256);
    expect(await countEffects()).toBe(1);
  });

  it('stays in doubt when a later refusal proves nothing', async () => {
    await upstream.plan({ match: { id }, do: ['apply', 'drop'] });
    await upstream.plan({ match: { id }, do: [{ reply: 404 }], times: 'always' });
    const answer = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer: 'wait=2' } });
    expect(answer.status).toBe(504);
    expect(answer.body).toMatchObject({ code: 'in_doubt', retry: 'same_key' });
  });

  it('is sent again if the tool has once: idempotent', async () => {
    await upstream.plan({ match: { id }, do: ['apply', { reply: 500 }] });
    const answer = await gateway.call('world.put', { id }, { key: id });
    expect(answer.status).toBe(200);
    expect(answer.body.attempts).toBe(2);
  });

  it('answers with the result of the probe if the probe finds the effect', async () => {
    await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', 'drop'] });
    const answer = await gateway.call('world.probed', { id }, { key: id });
    expect(answer.status).toBe(200);
    expect(answer.body.result).toMatchObject({ found: true });
    expect(await countEffects()).toBe(1);
  });

  it('is sent once more if the probe finds no effect', async () => {
    await upstream.plan({ match: { id, method: 'POST' }, do: ['drop'] });
    const answer = await gateway.call('world.probed', { id }, { key: id });
    expect(answer.status).toBe(200);
    expect(answer.body.attempts).toBe(2);
    expect(await countEffects()).toBe(1);
  });

  it.each([
    ['reset', ['apply', 'drop'], 1],
    ['a 500', ['apply', { reply: 500 }], 1],
    ['a redirect', [{ redirect: 'http://127.0.0.1:1/' }], 0],
    ['garbage', ['garbage'], 0],
    ['silence', ['hang'], 0],
  ] as const)(
    'is in doubt until a person resolves it if the tool has once: none (%s)',
    async (_name, steps, effects) => {
      await upstream.plan({ match: { id }, do: [...steps] });
      const answer = await gateway.call('world.none', { id }, { key: id });
      expect(answer.status).toBe(504);
      const again = await gateway.call('world.none', { id }, { key: id });
      expect(again.status).toBe(504);
      expect(await upstream.requests(id)).toHaveLength(1);
      expect(await countEffects()).toBe(effects);

      const { txn } = answer.body;
      const verdict = effects === 1 ? 'applied' : 'not_applied';
      const resolved = await gateway.admin('POST', `/admin/calls/${txn}/resolve`, {
        verdict,
        reason: 'looked',
        ...(effects === 1 ? { result: { ok: 1 } } : {}),
      });
      expect(resolved.status).toBe(200);
      expect(resolved.body.state).toBe(effects === 1 ? 'succeeded' : 'failed');
      const answerAfterVerdict = await gateway.call('world.none', { id }, { key: id });
      expect(answerAfterVerdict.status).toBe(effects === 1 ? 200 : 502);
      if (effects === 1) expect(answerAfterVerdict.body.result).toEqual({ ok: 1 });
      expect((await gateway.admin('POST', `/admin/calls/${txn}/resolve`, { verdict, reason: 'again' })).status).toBe(
        200,
      );
      const opposite = verdict === 'applied' ? 'not_applied' : 'applied';
      expect(
        (await gateway.admin('POST', `/admin/calls/${txn}/resolve`, { verdict: opposite, reason: 'no' })).status,
      ).toBe(409);
    },
  );

  it('is sent again when a person resolves it with retry', async () => {
    await upstream.plan({ match: { id }, do: ['drop'] });
    const answer = await gateway.call('world.none', { id }, { key: id });
    expect(answer.status).toBe(504);
    const retried = await gateway.admin('POST', `/admin/calls/${answer.body.txn}/resolve`, {
      verdict: 'retry',
      reason: 'it is not there',
    });
    expect(retried.status).toBe(200);
    const answerAfterVerdict = await gateway.call('world.none', { id }, { key: id });
    expect(answerAfterVerdict.status).toBe(200);
    expect(await upstream.requests(id)).toHaveLength(2);
    expect(await countEffects()).toBe(1);
  });

  it('succeeds without a body if the status line and headers arrived', async () => {
    await upstream.plan({ match: { id }, do: ['apply', 'partial'] });
    const answer = await gateway.call('world.none', { id }, { key: id });
    expect(answer.status).toBe(200);
    expect(answer.body).toMatchObject({ state: 'succeeded', result: null, outcome: 'body_unavailable' });
  });
});

describe('a read', () => {
  it('is sent again after a 5xx, and fails with the last status if every attempt fails', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 500 }] });
    expect((await gateway.call('world.read', { id })).status).toBe(200);
    await upstream.plan({ match: { id }, do: [{ reply: 503 }], times: 'always' });
    const failed = await gateway.call('world.read', { id });
    expect(failed.status).toBe(502);
    expect(failed.body).toMatchObject({ code: 'tool_failed', upstream: { status: 503 } });
  });
});
