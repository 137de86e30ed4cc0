import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { RunHolder } from '../controls/run-holder.ts';
import { connectNewestClient } from '../mcp/clients.ts';
import { TestSaga } from '../sagas/saga.ts';
import { AGENT_KEY, type CallOptions, type Gateway, OTHER_AGENT_KEY, writePolicies } from '../support/gateway.ts';
import { readAuditEntries } from '../support/ledger.ts';
import { buildSharedKeyPolicies, CAREFUL_KEY, OUTVOTED_KEY, STRANGER_KEY } from '../support/shared-policies.ts';
import { useReplicas } from '../support/use-gateway.ts';

let id: string;

const { upstream, database, one, two } = useReplicas({ policies: buildSharedKeyPolicies });
beforeEach(async () => {
  await upstream.reset();
  id = randomUUID();
});

const closeTicket = (gateway: Gateway, agentKey: string, options: CallOptions & { note?: string } = {}) => {
  const { note, ...rest } = options;
  return gateway.call('tickets.close', { id, ...(note === undefined ? {} : { note }) }, { ...rest, agentKey });
};
const readLog = (what: string, txn: string) => readAuditEntries(database, what, txn);
const DRY_RUN = { headers: { 'oncegate-dry-run': '?1' } };

describe('equal requests of two agents', () => {
  it('are one call with one effect; the answer to the second is marked as a replay', async () => {
    const first = await closeTicket(one, AGENT_KEY);
    const second = await closeTicket(two, OTHER_AGENT_KEY);
    expect(first.body).toMatchObject({ state: 'succeeded', replayed: false });
    expect(second.body).toEqual({ ...first.body, replayed: true });
    expect(second.headers.get('idempotent-replayed')).toBe('true');
    expect(await upstream.requests(id)).toHaveLength(1);
    expect((await one.admin('GET', `/admin/calls/${first.body.txn}`)).body).toMatchObject({ agent: 'tester' });
  });

  it('that arrive at once on two replicas are sent once; all but one answer are marked as replays', async () => {
    const requests = Array.from({ length: 24 }, (_, k) =>
      closeTicket(
        k % 2 === 0 ? one : two,
        k % 3 === 0 ? AGENT_KEY : OTHER_AGENT_KEY,
        k % 5 === 0 ? { key: `k${k}-${id}` } : {},
      ),
    );
    const answers = await Promise.all(requests);
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    expect(answers.filter(({ body }) => !body.replayed)).toHaveLength(1);
    expect(new Set(answers.map(({ body }) => JSON.stringify({ ...body, replayed: true }))).size).toBe(1);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('are logged as one join per agent, and people see who joined', async () => {
    const { txn } = (await closeTicket(one, AGENT_KEY)).body;
    for (const gateway of [one, two, one]) await closeTicket(gateway, OTHER_AGENT_KEY);
    await closeTicket(two, AGENT_KEY);
    expect(await readLog('call_joined', txn)).toHaveLength(1);
    const { timeline } = (await one.admin('GET', `/admin/calls/${txn}`)).body;
    expect(timeline.filter(({ what }: { what: string }) => what === 'joined')).toMatchObject([{ by: 'other' }]);
  });

  it('let both agents read and await the call over HTTP and MCP, and hide the saga of the first', async () => {
    await upstream.plan({ match: { id }, do: [{ event: `at-${id}` }, { wait: id }, 'apply', { reply: 200 }] });
    const saga = await TestSaga.open(one);
    const first = saga.callStep('tickets.close', { id });
    await upstream.awaitEvent(`at-${id}`);
    const joined = await closeTicket(two, OTHER_AGENT_KEY, { headers: { prefer: 'wait=0' } });
    expect([joined.status, joined.body.code]).toEqual([409, 'in_progress']);
    const { txn } = joined.body;
    const waiting = two.get(`/v1/calls/${txn}?wait=20`, OTHER_AGENT_KEY);
    await upstream.release(id);
    const { body } = await first;
    const seen = (await waiting).body;
    expect(seen).toMatchObject({ state: 'succeeded', result: body.result, saga: null, run: null, lockToken: null });
    expect((await one.get(`/v1/calls/${txn}`)).body).toMatchObject({ saga: saga.id, result: body.result });
    const client = await connectNewestClient(two, { key: OTHER_AGENT_KEY });
    const overMcp = await client.callTool({ name: 'oncegate.get_call', arguments: { txn } });
    await client.close();
    expect(overMcp.structuredContent).toMatchObject({ txn, state: 'succeeded', result: body.result, saga: null });
    expect((await closeTicket(one, OTHER_AGENT_KEY)).body).toMatchObject({ saga: null, result: body.result });
  });

  it('count against the limits of the first agent only', async () => {
    const ids = Array.from({ length: 3 }, () => randomUUID());
    for (id of ids) await closeTicket(one, AGENT_KEY);
    for (id of ids) expect((await closeTicket(two, OTHER_AGENT_KEY)).status).toBe(200);
    await database.query('delete from spends');
    id = randomUUID();
    expect((await closeTicket(two, OTHER_AGENT_KEY)).body.replayed).toBe(false);
    id = randomUUID();
    expect((await closeTicket(two, OTHER_AGENT_KEY)).body.code).toBe('rate_limited');
  });

  it('do not wait for each other’s lock', async () => {
    await upstream.plan({ match: { id }, do: [{ event: `at-${id}` }, { wait: id }, 'apply', { reply: 200 }] });
    const first = closeTicket(one, AGENT_KEY);
    await upstream.awaitEvent(`at-${id}`);
    const second = closeTicket(two, OTHER_AGENT_KEY);
    await upstream.release(id);
    expect((await second).body.result).toEqual((await first).body.result);
  });
});

describe('an agent', () => {
  it('that is denied by its voters does not join, and learns nothing', async () => {
    const before = await closeTicket(one, OUTVOTED_KEY);
    const { txn } = (await closeTicket(one, AGENT_KEY)).body;
    const after = await closeTicket(one, OUTVOTED_KEY);
    expect([after.status, after.body]).toEqual([403, before.body]);
    expect((await one.get(`/v1/calls/${txn}`, OUTVOTED_KEY)).status).toBe(404);
  });

  it('learns nothing about calls of other agents from a dry run', async () => {
    const before = await closeTicket(one, OTHER_AGENT_KEY, DRY_RUN);
    await closeTicket(one, AGENT_KEY);
    expect((await closeTicket(one, OTHER_AGENT_KEY, DRY_RUN)).body.earlier).toEqual(before.body.earlier);
    expect((await closeTicket(one, AGENT_KEY, DRY_RUN)).body.earlier).toEqual({ state: 'succeeded' });
  });

  it('that names a run of which it is not the owner does not join', async () => {
    await closeTicket(one, AGENT_KEY);
    const headers = { 'oncegate-run': randomUUID(), 'oncegate-epoch': '1' };
    expect((await closeTicket(one, OTHER_AGENT_KEY, { headers })).status).toBe(404);
  });

  it('that its rules deny learns nothing, not even that the call exists', async () => {
    const before = await closeTicket(one, STRANGER_KEY);
    const { txn } = (await closeTicket(one, AGENT_KEY)).body;
    const after = await closeTicket(one, STRANGER_KEY);
    expect(before.status).toBe(403);
    expect([after.status, { ...after.body }]).toEqual([before.status, before.body]);
    expect((await closeTicket(one, STRANGER_KEY, DRY_RUN)).body.wouldAnswer).toMatchObject({ code: 'denied' });
    expect((await one.get(`/v1/calls/${txn}`, STRANGER_KEY)).status).toBe(404);
    expect((await one.get(`/v1/calls/${txn}`, OTHER_AGENT_KEY)).status).toBe(404);
    expect(await readLog('call_joined', txn)).toEqual([]);
  });

  it('that joined still gets the result after its rules changed to deny', async () => {
    const first = await closeTicket(one, AGENT_KEY);
    expect((await closeTicket(one, OTHER_AGENT_KEY)).status).toBe(200);
    const policies = buildSharedKeyPolicies(upstream.url)['shared.yaml'] ?? '';
    const denied = policies.replaceAll(
      'rules: [{ allow: tickets.close, rate',
      'rules: [{ deny: tickets.close }, { allow: tickets.close, rate',
    );
    await writePolicies(one, { 'shared.yaml': denied });
    for (const gateway of [one, two])
      expect((await gateway.admin('POST', '/admin/policies/reload', {})).status).toBe(200);
    expect((await closeTicket(two, OTHER_AGENT_KEY)).body).toMatchObject({ replayed: true, result: first.body.result });
    id = randomUUID();
    await closeTicket(one, AGENT_KEY);
    expect((await closeTicket(two, OTHER_AGENT_KEY)).body.code).toBe('denied');
    await writePolicies(one, { 'shared.yaml': policies });
    for (const gateway of [one, two])
      expect((await gateway.admin('POST', '/admin/policies/reload', {})).status).toBe(200);
  });

  it('that uses the shared key with other arguments is refused, and does not see the arguments of the other', async () => {
    await closeTicket(one, AGENT_KEY, { note: 'my-secret-note' });
    const refused = await closeTicket(two, OTHER_AGENT_KEY, { note: 'mine' });
    expect([refused.status, refused.body.code]).toEqual([422, 'key_reused']);
    expect(JSON.stringify(refused.body)).not.toContain('my-secret-note');
    expect((await two.get(`/v1/calls/${refused.body.txn}`, OTHER_AGENT_KEY)).status).toBe(404);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('can neither make the call of another agent a step of its saga nor name its undo', async () => {
    const first = await TestSaga.open(one);
    await first.callStep('tickets.close', { id });
    const second = await TestSaga.open(two, {}, OTHER_AGENT_KEY);
    const refused = await second.callStep('tickets.close', { id });
    expect([refused.status, refused.body.code]).toEqual([422, 'key_reused']);
    expect(refused.body.detail).toContain('cannot be a step of your saga');
    expect(JSON.stringify(refused.body)).not.toContain(first.id);
    // Naming the saga of the first agent does not help either.
    const borrowed = await closeTicket(two, OTHER_AGENT_KEY, { headers: { 'oncegate-saga': first.id } });
    expect(borrowed.body.code).toBe('key_reused');
    const undoHeader = JSON.stringify({ tool: 'tickets.reopen', args: { id: 'x' } });
    expect((await closeTicket(two, OTHER_AGENT_KEY, { headers: { 'oncegate-undo': undoHeader } })).body.code).toBe(
      'key_reused',
    );
    expect((await second.read()).steps).toEqual([]);

    await closeTicket(two, OTHER_AGENT_KEY);
    const dryRun = await second.callStep('tickets.close', { id }, { headers: DRY_RUN.headers });
    expect(dryRun.body.wouldAnswer).toMatchObject({ code: 'key_reused' });
    expect((await first.rollback()).body.state).toBe('rolled_back');
    const { undo } = (await two.get(`/v1/calls/${(await closeTicket(two, OTHER_AGENT_KEY)).body.txn}`, OTHER_AGENT_KEY))
      .body;
    expect(undo).toMatchObject({ state: 'done', txn: null });
  });

  it('that names its own run joins, and the call does not become part of that run', async () => {
    await closeTicket(one, AGENT_KEY);
    const run = await RunHolder.take(two, `joins-${id}`, '', OTHER_AGENT_KEY);
    expect((await run.call('tickets.close', { id })).body).toMatchObject({ state: 'succeeded', replayed: true });
    expect((await run.history()).body.items).toEqual([]);
  });
});

describe('an idempotency key that is sent along with a shared key', () => {
  it('joins the shared call, and is bound to it from then on', async () => {
    const first = await closeTicket(one, AGENT_KEY, { key: `mine-${id}` });
    expect((await closeTicket(two, OTHER_AGENT_KEY, { key: `theirs-${id}` })).body.txn).toBe(first.body.txn);
    expect((await closeTicket(two, AGENT_KEY, { key: `again-${id}` })).body).toEqual({ ...first.body, replayed: true });
    expect(await upstream.requests(id)).toHaveLength(1);
    for (const [agentKey, key] of [
      [AGENT_KEY, `mine-${id}`],
      [AGENT_KEY, `again-${id}`],
      [OTHER_AGENT_KEY, `theirs-${id}`],
    ] as const) {
      const other = randomUUID();
      for (const tool of ['tickets.mail', 'tickets.tag']) {
        const refused = await two.call(tool, { id: other }, { agentKey, key });
        expect([tool, refused.status, refused.body.code]).toEqual([tool, 422, 'key_reused']);
        const planned = await two.call(tool, { id: other }, { agentKey, key, ...DRY_RUN });
        expect([tool, planned.body.wouldAnswer.code]).toEqual([tool, 'key_reused']);
      }
      expect(await upstream.requests(other)).toEqual([]);
    }
    // Another agent's key of the same text is another key.
    expect(
      (await one.call('tickets.tag', { id: `tag-${id}` }, { agentKey: OTHER_AGENT_KEY, key: `mine-${id}` })).status,
    ).toBe(200);
  });

  it('is refused if it was used for another call, and nothing is sent', async () => {
    const key = `own-${id}`;
    expect((await one.call('tickets.tag', { id: `tag-${id}` }, { key })).status).toBe(200);
    expect((await closeTicket(two, AGENT_KEY, { key })).body.code).toBe('key_reused');
    expect((await closeTicket(one, AGENT_KEY, { key, ...DRY_RUN })).body.wouldAnswer.code).toBe('key_reused');
    expect(await upstream.requests(id)).toEqual([]);
    expect((await closeTicket(two, AGENT_KEY)).body.replayed).toBe(false);
  });

  it('is not bound if nothing was sent', async () => {
    await upstream.kill();
    const key = `free-${id}`;
    expect((await closeTicket(one, AGENT_KEY, { key })).status).toBe(503);
    await upstream.restart();
    expect((await one.call('tickets.tag', { id: `tag-${id}` }, { key })).status).toBe(200);
  });

  it('identifies the call if the arguments yield no shared key', async () => {
    const ask = (agentKey: string) => one.call('tickets.note', { id }, { agentKey, key: `note-${id}` });
    const [mine, theirs] = [await ask(AGENT_KEY), await ask(OTHER_AGENT_KEY)];
    expect(mine.body.txn).not.toBe(theirs.body.txn);
    expect((await ask(AGENT_KEY)).body).toMatchObject({ txn: mine.body.txn, replayed: true });
  });
});

describe('a held call with a shared key', () => {
  it('is held for both agents, can be cancelled only by the first, and is sent once after approval', async () => {
    const ask = (agentKey: string) => one.call('tickets.mail', { id }, { agentKey, headers: { prefer: 'wait=0' } });
    const first = await ask(CAREFUL_KEY);
    const second = await ask(AGENT_KEY);
    expect([first.status, second.status, second.body.state]).toEqual([202, 202, 'held']);
    expect(second.body.txn).toBe(first.body.txn);
    const { txn } = first.body;
    const refused = await two.request('POST', `/v1/calls/${txn}/cancel`, { key: AGENT_KEY });
    expect([refused.status, refused.body.code]).toEqual([409, 'conflict']);
    const [{ digest }] = (await one.admin('GET', '/admin/approvals?state=pending')).body.items;
    expect((await one.admin('POST', `/admin/approvals/${txn}/approve`, { digest, reason: 'fine' })).status).toBe(200);
    for (const key of [CAREFUL_KEY, AGENT_KEY])
      expect((await two.get(`/v1/calls/${txn}?wait=20`, key)).body).toMatchObject({ state: 'succeeded' });
    expect(await upstream.effects(id)).toHaveLength(1);
  });
});

describe('a call with a shared key that is erased', () => {
  it('answers key_expired to both agents, and is not sent again', async () => {
    const { txn } = (await closeTicket(one, AGENT_KEY)).body;
    await closeTicket(two, OTHER_AGENT_KEY);
    expect((await one.admin('POST', '/admin/erase', { txn, reason: 'asked to' })).status).toBe(200);
    for (const agentKey of [AGENT_KEY, OTHER_AGENT_KEY])
      expect((await closeTicket(two, agentKey)).body.code).toBe('key_expired');
    expect(await upstream.requests(id)).toHaveLength(1);
  });
});

describe('an idempotency key that was used before its tool had a shared key', () => {
  it('replays the call that was made with it', async () => {
    await writePolicies(one, buildSharedKeyPolicies(upstream.url, 'agent'));
    await one.admin('POST', '/admin/policies/reload');
    const first = await closeTicket(one, AGENT_KEY, { key: `before-${id}` });
    await writePolicies(one, buildSharedKeyPolicies(upstream.url));
    for (const each of [one, two]) await each.admin('POST', '/admin/policies/reload');
    // The second replica has no answer in its replay cache.
    const again = await closeTicket(two, AGENT_KEY, { key: `before-${id}` });
    expect([again.status, again.body]).toEqual([200, { ...first.body, replayed: true }]);
    expect(await upstream.requests(id)).toHaveLength(1);
  });
});
