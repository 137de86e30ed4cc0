import type { ServerResponse } from 'node:http';
import { beforeEach, describe, expect, it } from 'vitest';
import { signBody } from '../../gateway/domain/webhook-signature.ts';
import { askVoters, type VoteSubject } from '../../gateway/flow/approvals/votes.ts';
import type { Context } from '../../gateway/flow/context.ts';
import { AGENT_KEY, keysYaml, PEOPLE_YAML, writePolicies } from '../support/gateway.ts';
import { readAuditEntries } from '../support/ledger.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { type ReceivedVoteRequest, TestVoter } from '../support/voter.ts';

const SECRET = 'a-voter-secret-of-some-length';
const CARD = '4242-canary-4242';

let id = '';

function policies(comment = ''): Record<string, string> {
  const hook = `{ name: reviewer, webhook: "\${env.VOTER_URL}", secret: "\${env.VOTER_SECRET}", within: 1s, allowPrivate: true }`;
  const smallVoter = '{ name: small, when: size(args.ids) <= 2 }';
  const tool = (path: string, more = '') => `
    upstream: world
    input: { type: object, properties: { id: { type: string }, ids: { type: array }, card: { type: string } }, required: [id] }
    request: { method: POST, path: ${path}, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: compensable, tool: world.restore, args: { id: "\${args.id}" } }
    redact: [args.card]${more}`;
  return {
    'voters.yaml': `# ${comment}
upstreams:
  world: { adapter: http, url: "\${env.WORLD_URL}", allowPrivate: true }
tools:
  world.delete: ${tool('/keyed/charge')}
  world.any: ${tool('/keyed/refund')}
  world.held: ${tool('/none/mail')}
  world.private: ${tool('/probed/orders')}
  world.counted: ${tool('/keyed-field/charge')}
  world.restore:
    upstream: world
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }
    once: { by: idempotent }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.delete
        voters: { of: [${smallVoter}, ${hook}] }
      - allow: world.any
        voters: { quorum: 1, of: [${smallVoter}, ${hook}] }
      - allow: world.held
        voters: { of: [${hook}] }
        approve: {}
      - allow: world.private
        voters: { of: [${hook.replace(', allowPrivate: true', '').replace('VOTER_URL', 'PRIVATE_URL')}] }
      - allow: world.counted
        voters: { of: [{ name: few, when: 'history.count("world.counted", "1h") < 3' }] }
      - allow: world.restore
        voters: { of: [{ name: never, when: false }] }
      - allow: oncegate.begin_saga
${PEOPLE_YAML}`,
  };
}

const voter = useResource(
  () => TestVoter.start(SECRET),
  (started) => started.stop(),
);
const { upstream, database, gateway } = useGateway({
  env: (url) => ({
    WORLD_URL: url,
    VOTER_URL: voter.url,
    PRIVATE_URL: voter.url.replace('http:', 'https:'),
    VOTER_SECRET: SECRET,
  }),
  policies: policies(),
});
beforeEach(() => {
  id = uniqueId('case');
  voter.behavior = 'approve';
});

const call = (tool: string, args: object = {}, headers: Record<string, string> = {}) =>
  gateway.call(tool, { id, ids: [1], ...args }, { key: id, headers });
const readEntries = (about: string) => readAuditEntries(database, undefined, about);
const formatVotes = (votes: readonly { voter: string; verdict: string }[]) =>
  votes.map((v) => `${v.voter}:${v.verdict}`);

describe('voters', () => {
  it('that count earlier calls are exact under concurrent calls', async () => {
    const keys = Array.from({ length: 12 }, (_, i) => `${id}-${i}`);
    const replies = await Promise.all(keys.map((key) => gateway.call('world.counted', { id: key }, { key })));
    expect(replies.map(({ status }) => status).sort()).toEqual([...Array(3).fill(200), ...Array(9).fill(403)]);
  });

  it('get a signed request before the claim; their votes are committed with the claim and shown', async () => {
    const reply = await call('world.delete', { card: CARD });
    expect(reply).toMatchObject({ status: 200, body: { state: 'succeeded' } });
    const [request] = voter.findRequestsAbout(id) as [ReceivedVoteRequest];
    expect(request.isSigned).toBe(true);
    expect(request.body).toMatchObject({
      kind: 'vote',
      voter: 'reviewer',
      agent: 'tester',
      tool: 'world.delete',
      txn: reply.body.txn,
    });
    expect(request.text).not.toContain(CARD);
    expect(request.text).not.toContain('fingerprint');
    const [claimed] = (await readEntries(reply.body.txn)).filter(({ what }) => what === 'call_claimed');
    expect(claimed.votes).toEqual([
      { voter: 'small', verdict: 'approve', reason: 'the condition is true' },
      { voter: 'reviewer', verdict: 'approve', reason: 'I say approve' },
    ]);
    const { timeline } = (await gateway.admin('GET', `/admin/calls/${reply.body.txn}`)).body;
    expect(
      timeline.map(({ what, voter: by, verdict }: Record<string, string>) =>
        [what, by, verdict].filter(Boolean).join(' '),
      ),
    ).toEqual(['vote small approve', 'vote reviewer approve', 'claimed', 'succeeded']);
  });

  it('that deny make the call 403 without binding its key; the log has the reasons, and the agent sees only who denied', async () => {
    voter.behavior = 'deny';
    const reply = await call('world.delete', { ids: [1, 2] });
    expect(reply).toMatchObject({
      status: 403,
      body: {
        code: 'denied',
        votes: [
          { voter: 'small', verdict: 'approve' },
          { voter: 'reviewer', verdict: 'deny' },
        ],
      },
    });
    expect(reply.body.detail).toContain('only if 2 of 2 voters approve; 1 did. Not approved by: reviewer.');
    expect(JSON.stringify(reply.body)).not.toMatch(/127\.0\.0\.1|I say/);
    const denials = (await readEntries('I say deny')).filter(({ what }) => what === 'denied');
    expect(denials.at(-1)).toMatchObject({
      agent: 'tester',
      tool: 'world.delete',
      votes: [{ voter: 'small' }, { voter: 'reviewer', verdict: 'deny', reason: 'I say deny' }],
    });
    expect(await upstream.requests(id)).toEqual([]);
    voter.behavior = 'approve';
    expect((await call('world.delete', { ids: [1, 2] })).status).toBe(200);
  });

  it('are not asked if the quorum is out of reach, nor for replays', async () => {
    expect((await call('world.delete', { ids: [1, 2, 3] })).body.votes).toEqual([
      { voter: 'small', verdict: 'deny' },
      { voter: 'reviewer', verdict: 'abstain' },
    ]);
    expect(voter.findRequestsAbout(id)).toEqual([]);
    expect((await call('world.any')).status).toBe(200);
    voter.behavior = 'deny';
    const again = await Promise.all([call('world.any'), call('world.any')]);
    for (const { status, body } of again) expect([status, body.replayed]).toEqual([200, true]);
    expect(voter.findRequestsAbout(id)).toHaveLength(1);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('are not asked again when recovery continues a call that they approved', async () => {
    await gateway.kill();
    await gateway.start({ ONCEGATE_DIE_AT: 'sending' });
    await call('world.delete').catch(() => undefined);
    await gateway.waitForExit();
    voter.behavior = 'deny';
    await gateway.start();
    const reply = await call('world.delete', {}, { prefer: 'wait=20' });
    expect(reply).toMatchObject({ status: 200, body: { replayed: true } });
    const { timeline } = (await gateway.admin('GET', `/admin/calls/${reply.body.txn}`)).body;
    expect(timeline[1]).toMatchObject({ what: 'vote', voter: 'reviewer', verdict: 'approve' });
    expect(voter.findRequestsAbout(id)).toHaveLength(1);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('have no veto: only the number of approvals counts', async () => {
    voter.behavior = 'deny';
    expect((await call('world.any')).status).toBe(200);
    expect((await gateway.call('world.any', { id, ids: [1, 2, 3] }, { key: `${id}-b` })).status).toBe(403);
  });
});

describe('an answer that is not a valid approval of this call does not count as approval', () => {
  const buildApproval = ({ body }: ReceivedVoteRequest, more: object = {}) => ({
    vote: 'approve',
    digest: body.digest,
    reason: 'fine',
    ...more,
  });
  const sendUnsigned = (response: ServerResponse, answer: unknown, headers = {}) => {
    response.writeHead(200, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(answer));
  };

  it.each<[string, (request: ReceivedVoteRequest, response: ServerResponse) => void, RegExp]>([
    ['no signature', (request, response) => sendUnsigned(response, buildApproval(request)), /not signed/],
    [
      'a signature with another secret',
      (request, response) => voter.sendVote(response, buildApproval(request), 'another-secret-of-some-length'),
      /not signed/,
    ],
    [
      'a signature of something else',
      (request, response) =>
        sendUnsigned(response, buildApproval(request), { 'oncegate-signature': signBody(SECRET, '{}') }),
      /not signed/,
    ],
    [
      'the request of the gateway, sent back',
      ({ text, headers }, response) => {
        response.writeHead(200, { 'oncegate-signature': String(headers['oncegate-signature']) }).end(text);
      },
      /not a vote/,
    ],
    [
      'no digest',
      (request, response) => voter.sendVote(response, buildApproval(request, { digest: undefined })),
      /does not repeat the digest/,
    ],
    [
      'the unknown vote "yes"',
      (request, response) => voter.sendVote(response, buildApproval(request, { vote: 'yes' })),
      /not a vote/,
    ],
    ['true', (_, response) => voter.sendVote(response, true), /not a vote/],
    [
      'invalid JSON',
      (_, response) => {
        const text = '{"vote":';
        response.writeHead(200, { 'oncegate-signature': signBody(SECRET, text) }).end(text);
      },
      /not a vote/,
    ],
    [
      'a redirect',
      (_, response) => {
        response.writeHead(307, { location: voter.url }).end();
      },
      /307/,
    ],
    [
      'an error status',
      (request, response) => {
        const text = JSON.stringify(buildApproval(request));
        response.writeHead(500, { 'oncegate-signature': signBody(SECRET, text) }).end(text);
      },
      /500/,
    ],
    [
      'a cut connection',
      (_, response) => {
        response.destroy();
      },
      /did not arrive completely/,
    ],
    ['no answer', () => {}, /no answer within 1000 ms/],
    [
      'an answer that never ends',
      (_, response) => {
        response.writeHead(200).write('{');
      },
      /no answer within/,
    ],
    [
      'an answer that is too large',
      (_, response) => {
        response.writeHead(200).end('x'.repeat(100_000));
      },
      /did not arrive completely/,
    ],
    ['abstain', (request, response) => voter.sendVote(response, buildApproval(request, { vote: 'abstain' })), /fine/],
  ])('%s', async (_, manner, why) => {
    voter.behavior = manner;
    const reply = await call('world.delete');
    expect([reply.status, reply.body.code, formatVotes(reply.body.votes ?? [])]).toEqual([
      403,
      'denied',
      ['small:approve', 'reviewer:abstain'],
    ]);
    const denial = (await readEntries('"denied"')).sort((a, b) => (a.at < b.at ? -1 : 1)).at(-1);
    expect(denial.votes[1].reason).toMatch(why);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('an approval that was given for another key or for an earlier request', async () => {
    const kept: ReceivedVoteRequest[] = [];
    voter.behavior = (request, response) => {
      kept.push(request);
      voter.sendVote(response, buildApproval(request, { digest: kept[0]?.body.digest }));
    };
    expect((await gateway.call('world.delete', { id, ids: [1] }, { key: `${id}-a` })).status).toBe(200);
    expect((await gateway.call('world.delete', { id, ids: [1] }, { key: `${id}-b` })).status).toBe(403);
    expect((await gateway.call('world.delete', { id, ids: [1] }, { key: `${id}-b` })).status).toBe(403);
    expect(new Set(kept.map(({ body }) => body.digest)).size).toBe(3);
    expect(kept[0]?.body.args).toEqual(kept[1]?.body.args);
  });

  it('no answer from a private address without allowPrivate, which is never contacted', async () => {
    const before = voter.requests.length;
    const reply = await call('world.private');
    expect([reply.status, formatVotes(reply.body.votes)]).toEqual([403, ['reviewer:abstain']]);
    expect(JSON.stringify(reply.body)).not.toContain('127.0.0.1');
    expect(voter.requests.length).toBe(before);
    await expect.poll(() => gateway.output).toMatch(/private address/);
  });

  it('the reason of a vote is stored shortened and without NUL, surrogates or the secret of the voter', async () => {
    voter.behavior = (request, response) =>
      voter.sendVote(response, buildApproval(request, { reason: `\u0000 ${SECRET} \ud800 ${'x'.repeat(2_000)}` }));
    const { txn } = (await call('world.delete')).body;
    const { timeline } = (await gateway.admin('GET', `/admin/calls/${txn}`)).body;
    expect(timeline[1].reason).toMatch(/^\[redacted\] +x{400,500}$/);
    const everything = JSON.stringify([timeline, await readEntries(txn), gateway.output]);
    expect(everything).not.toContain(SECRET);
    expect(everything).not.toContain(`${SECRET.slice(0, 12)}`);
  });
});

describe('voters and other features', () => {
  it('a person sees the votes before deciding', async () => {
    const { txn } = (await call('world.held', {}, { prefer: 'wait=0' })).body;
    const pending = async () =>
      (await gateway.admin('GET', '/admin/approvals?state=pending')).body.items.find(
        (item: { txn: string }) => item.txn === txn,
      );
    const shown = await pending();
    expect(shown.voters).toEqual([{ voter: 'reviewer', verdict: 'approve', reason: 'I say approve' }]);
    const approved = await gateway.admin('POST', `/admin/approvals/${txn}/approve`, {
      reason: 'ok',
      digest: shown.digest,
    });
    expect(approved.status).toBe(200);
    await gateway.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect(voter.findRequestsAbout(id)).toHaveLength(1);
  });

  it('after a policy change a person cannot approve in place of the voters', async () => {
    const { txn } = (await call('world.held', {}, { prefer: 'wait=0' })).body;
    await writePolicies(gateway, policies(`changed after the vote, ${id}`));
    await gateway.admin('POST', '/admin/policies/reload');
    const { items } = (await gateway.admin('GET', '/admin/approvals?state=pending')).body;
    const { digest } = items.find((item: { txn: string }) => item.txn === txn);
    // The rules of a tool that redacts arguments are evaluated when the call runs.
    await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { reason: 'ok', digest });
    const failed = await gateway.waitForCall(txn, ({ state }) => state === 'failed');
    expect(failed.problem.detail).toMatch(/voters of .* were not asked under these policies/);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('a policy change while voters are asked refuses the call without binding its key', async () => {
    voter.behavior = (request, response) => {
      void (async () => {
        await writePolicies(gateway, policies(`changed for ${id}`));
        await gateway.admin('POST', '/admin/policies/reload');
        voter.sendVote(response, buildApproval(request));
      })();
    };
    const buildApproval = ({ body }: ReceivedVoteRequest) => ({ vote: 'approve', digest: body.digest });
    expect(await call('world.delete')).toMatchObject({ status: 503, body: { code: 'unavailable' } });
    expect(await upstream.requests(id)).toEqual([]);
    voter.behavior = 'approve';
    expect((await call('world.delete')).status).toBe(200);
  });

  it('a dry run shows the votes of expressions and the voters with a webhook, and asks none of them', async () => {
    const dry = (ids: number[]) => call('world.delete', { ids }, { 'oncegate-dry-run': '?1' });
    expect((await dry([1])).body).toMatchObject({
      voters: {
        quorum: 2,
        of: [
          { voter: 'small', by: 'when', verdict: 'approve' },
          { voter: 'reviewer', by: 'webhook', verdict: null },
        ],
      },
      wouldAnswer: { status: 200, sends: true },
    });
    expect((await dry([1, 2, 3])).body).toMatchObject({ wouldAnswer: { status: 403, code: 'denied', sends: false } });
    expect(voter.findRequestsAbout(id)).toEqual([]);
  });

  it('voters also decide on calls over the proxy, over MCP and in sagas, but not on compensations', async () => {
    voter.behavior = 'deny';
    const headers = { 'content-type': 'application/json', 'idempotency-key': id };
    const body = JSON.stringify({ id, ids: [1] });
    const proxied = await gateway.request('POST', '/v1/proxy/world/keyed/charge', { key: AGENT_KEY, headers, body });
    expect([proxied.status, formatVotes(proxied.body.votes)]).toEqual([403, ['small:approve', 'reviewer:deny']]);
    const mcp = await gateway.request('POST', '/mcp', {
      key: AGENT_KEY,
      headers: {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-protocol-version': '2025-06-18',
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'world__delete', arguments: { id, ids: [1] } },
      }),
    });
    const message = typeof mcp.body === 'string' ? JSON.parse(mcp.body.replace(/^[^{]*/, '')) : mcp.body;
    expect(message.result).toMatchObject({
      isError: true,
      structuredContent: { code: 'denied', votes: [{}, { voter: 'reviewer' }] },
    });
    const { saga } = (
      await gateway.request('POST', '/v1/sagas', {
        key: AGENT_KEY,
        headers: { 'content-type': 'application/json' },
        body: '{}',
      })
    ).body;
    expect((await call('world.delete', {}, { 'oncegate-saga': saga })).status).toBe(403);
    voter.behavior = 'approve';
    expect((await call('world.delete', {}, { 'oncegate-saga': saga })).status).toBe(200);
    const requestCount = voter.requests.length;
    const rolled = await gateway.request('POST', `/v1/sagas/${saga}/rollback?wait=20`, {
      key: AGENT_KEY,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ reason: 'no' }),
    });
    expect(rolled.body.state).toBe('rolled_back');
    expect(voter.requests.length).toBe(requestCount);
    // An undo that the agent names is refused, because its voters deny it.
    const named = await gateway.call(
      'world.delete',
      { id, ids: [] },
      { key: `${id}-c`, headers: { 'oncegate-undo': JSON.stringify({ tool: 'world.restore', args: { id } }) } },
    );
    expect(named).toMatchObject({
      status: 403,
      body: { code: 'denied', detail: expect.stringContaining('Oncegate-Undo') },
    });
  });
});

it('a rule has at most 32 open requests to its voters, so that an agent cannot flood them', async () => {
  const tool = { name: 't', digest: 'd' };
  const policies = { version: 'v', tools: new Map([['t', tool]]) };
  const context = { policies: () => policies, log: { warn: () => {} } } as unknown as Context;
  const hook = { name: 'reviewer', url: voter.url, secret: SECRET, allowPrivate: true, withinMs: 20_000 };
  const ask = (times: number) => {
    const poll = { quorum: times, votes: [], open: Array.from({ length: times }, () => hook) };
    const subject = {
      txn: id,
      tool,
      rule: { id: 'rule 1' },
      poll,
      policies,
      shown: () => JSON.stringify({ args: { id } }),
    };
    return askVoters(context, subject as unknown as VoteSubject);
  };
  await expect(ask(33)).rejects.toMatchObject({
    code: 'denied',
    votes: expect.arrayContaining([
      { voter: 'reviewer', verdict: 'abstain', reason: 'the voter already has 32 open requests of this rule' },
    ]),
  });
  expect(voter.findRequestsAbout(id)).toHaveLength(32);
  expect(await ask(32)).toHaveLength(32);
});
