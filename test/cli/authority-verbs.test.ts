import { describe, expect, it } from 'vitest';
import { type CannedResponse, type ReceivedCliRequest, runCli, startCannedServer } from './terminal.ts';

const TXN = '7c0e6a52-8a0c-8f00-9a52-0123456789ab';
const DIGEST = 'd'.repeat(64);

const APPROVAL = {
  txn: TXN,
  agent: 'office-bot',
  tool: 'mail.send',
  state: 'pending',
  args: { to: 'ann@example.com', subject: 'Hello\u001b[2J', amount: 12 },
  target: { upstream: 'mail', method: 'POST', url: 'https://mail.example/messages' },
  undo: { kind: 'irreversible', tool: null },
  rule: 'office-bot rule 3 (policies/office.yaml:40)',
  policyVersion: 'abc123',
  digest: DIGEST,
  groups: ['finance'],
  quorum: 2,
  requestedAt: '2026-01-01T00:00:00.000Z',
  expiresAt: '2026-01-01T01:00:00.000Z',
  decidedAt: null,
  votes: [{ person: 'bob', verdict: 'approve', reason: 'known', at: '2026-01-01T00:01:00.000Z' }],
};

/** A server with one pending approval. It answers every decision with `decided`. */
function startApprovalServer(decided: CannedResponse, items: readonly object[] = [APPROVAL]) {
  return startCannedServer(({ method, url }) => {
    if (method === 'POST') return decided;
    if (url.pathname === '/admin/approvals') return { body: { items, cursor: null } };
    const [found] = items;
    return found === undefined ? problem(404, 'not_found') : { body: found };
  });
}

const APPROVED: CannedResponse = { body: { ...APPROVAL, state: 'approved' } };
const listPosts = (requests: readonly ReceivedCliRequest[]) => requests.filter(({ method }) => method === 'POST');

function problem(status: number, code: string, members: object = {}): CannedResponse {
  const body = { title: 'A title', detail: 'a detail', status, code, retry: 'never', ...members };
  return { status, type: 'application/problem+json', body };
}

describe('approvals', () => {
  it('lists pending approvals, or all with --state any', async () => {
    const { env, requests } = await startApprovalServer(APPROVED);
    const { code, out } = await runCli(['approvals'], { env });
    expect(requests[0]?.url.pathname).toBe('/admin/approvals');
    expect(requests[0]?.url.searchParams.get('state')).toBe('pending');
    const row = [TXN, 'pending', 'office-bot', 'mail.send', '1/2', 'finance', APPROVAL.expiresAt, 'irreversible'];
    expect([code, out]).toEqual([0, `${row.join('\t')}\n`]);
    await runCli(['approvals', '--state', 'any'], { env });
    expect(requests[1]?.url.searchParams.has('state')).toBe(false);
  });

  it('fits a terminal, and says so when no call waits', async () => {
    const { env } = await startApprovalServer(APPROVED);
    const { out } = await runCli(['approvals'], { env: { ...env, NO_COLOR: '1' }, isTty: true });
    for (const line of out.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
    expect(out).toContain(`${TXN}  office`);
    const { out: any } = await runCli(['approvals', '--state', 'any'], {
      env: { ...env, NO_COLOR: '1' },
      isTty: true,
    });
    for (const line of any.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
    expect(any).toContain(`${TXN}  pending`);
    const none = await startApprovalServer(APPROVED, []);
    expect((await runCli(['approvals'], { env: none.env, isTty: true })).out).toBe('No call waits for a person.\n');
    expect((await runCli(['approvals', '--json'], { env })).out).toContain(DIGEST);
  });
});

describe('a delayed call', () => {
  const leavesAt = new Date(Date.now() + 3_599_000).toISOString();
  const DELAYED = {
    ...APPROVAL,
    hold: 'delay',
    leavesAt,
    expiresAt: leavesAt,
    voters: [{ voter: 'reviewer', verdict: 'abstain', reason: 'no answer within 2000 ms' }],
  };

  it('is listed with the time until it is sent, and fits a terminal', async () => {
    const { env } = await startApprovalServer(APPROVED, [DELAYED]);
    const { out } = await runCli(['approvals'], { env: { ...env, NO_COLOR: '1' }, isTty: true });
    for (const line of out.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
    expect(out).toContain('59m, sends');
    expect((await runCli(['approvals', '--state', 'unopposed'], { env })).code).toBe(0);
  });

  it('is shown with its votes and the time of its send, and can be rejected', async () => {
    const { env, requests } = await startApprovalServer({ body: { ...DELAYED, state: 'rejected' } }, [DELAYED]);
    const argv = ['reject', TXN, '--reason', 'not him'];
    const { code, out } = await runCli(argv, { env });
    expect(code).toBe(0);
    expect(out).toContain('voter\treviewer: abstain, no answer within 2000 ms\n');
    expect(out).toContain(`delay\tsent automatically at ${leavesAt}, unless you reject it\n`);
    expect(listPosts(requests)[0]?.url.pathname).toBe(`/admin/approvals/${TXN}/reject`);
  });

  it('shows the time of its send once it is approved', async () => {
    const waiting = { ...APPROVAL, hold: 'approval', leavesAt: null, delaySeconds: 300 };
    const { env } = await startApprovalServer({ body: DELAYED }, [waiting]);
    const { out } = await runCli(['approve', TXN, '--reason', 'yes', '--yes'], {
      env: { ...env, NO_COLOR: '1' },
      isTty: true,
    });
    expect(out).toContain('5m after the approval');
    expect(out).toContain(`The gateway sends it at ${leavesAt}`);
  });
});

describe('approve', () => {
  const argv = ['approve', TXN, '--reason', 'he knows Ann'];

  it('shows the call, asks, and sends the digest of what it showed', async () => {
    const { env, requests } = await startApprovalServer(APPROVED);
    const options = { env: { ...env, NO_COLOR: '1' }, isTty: true, types: 'y' };
    const { code, out } = await runCli(argv, options);
    expect(code).toBe(0);
    const shown = out.slice(0, out.indexOf('[y/N]'));
    for (const text of ['office-bot', 'mail.send', 'POST https://mail.example/messages', 'ann@example.com'])
      expect(shown).toContain(text);
    for (const text of ['irreversible', 'bob: approve, known', 'abc123', DIGEST]) expect(shown).toContain(text);
    expect(out).not.toContain('\u001b');
    expect(out).toContain(`${TXN} is now approved`);
    expect(listPosts(requests)[0]?.url.pathname).toBe(`/admin/approvals/${TXN}/approve`);
    expect(JSON.parse(listPosts(requests)[0]?.body ?? '')).toEqual({ reason: 'he knows Ann', digest: DIGEST });
  });

  it.each(['n', '', 'yeah'])('decides nothing when the answer is %j', async (types) => {
    const { env, requests } = await startApprovalServer(APPROVED);
    const { code, err } = await runCli(argv, { env, isTty: true, types });
    expect([code, listPosts(requests)]).toEqual([1, []]);
    expect(err).toContain('The call still waits.');
  });

  it('does not ask with --yes or without a terminal', async () => {
    const { env, requests } = await startApprovalServer(APPROVED);
    const { code, out } = await runCli([...argv, '--yes'], { env });
    expect(code).toBe(0);
    expect(out).toContain(`digest\t${DIGEST}\n`);
    expect(out.endsWith(`${TXN}\tapproved\n`)).toBe(true);
    expect((await runCli([...argv, '--digest', DIGEST.toUpperCase()], { env })).code).toBe(0);
    expect(listPosts(requests)).toHaveLength(2);
    // With --json nothing is shown that a person could confirm.
    expect((await runCli([...argv, '--json'], { env, isTty: true, types: 'y' })).code).toBe(2);
    expect(JSON.parse((await runCli([...argv, '--yes', '--json'], { env })).out)).toMatchObject({
      state: 'approved',
    });
  });

  it('refuses a digest that does not match', async () => {
    const { env, requests } = await startApprovalServer(APPROVED);
    const { code, err } = await runCli([...argv, '--yes', '--digest', 'e'.repeat(64)], { env });
    expect([code, listPosts(requests)]).toEqual([1, []]);
    expect(err).toContain(DIGEST);
  });

  it('prints the decision of a call that no longer waits, and sends a digest that approves nothing', async () => {
    const again = await startApprovalServer(APPROVED, []);
    expect(await runCli([...argv, '--yes'], { env: again.env })).toMatchObject({
      code: 0,
      out: `${TXN}\tapproved\n`,
    });
    expect(JSON.parse(listPosts(again.requests)[0]?.body ?? '')).toMatchObject({ digest: '0'.repeat(64) });
    const other = await startApprovalServer(
      problem(409, 'conflict', { detail: 'The approval is already decided: rejected.' }),
      [],
    );
    const { code, err } = await runCli([...argv, '--yes'], { env: other.env });
    expect(code).toBe(1);
    expect(err).toContain('The approval is already decided: rejected.');
    expect(err).toContain('"oncegate approvals"');
  });

  it('says that a second vote does not count, and how many approvals are missing', async () => {
    const [bob] = APPROVAL.votes;
    const eve = { ...bob, person: 'eve' };
    const terminal = (env: NodeJS.ProcessEnv) => ({ env: { ...env, NO_COLOR: '1' }, isTty: true });
    const again = await startApprovalServer({ body: APPROVAL });
    const twice = await runCli([...argv, '--yes'], terminal(again.env));
    expect(twice.out).toContain('You have already voted, and a vote counts once: 1 more approval is needed.\n');
    const first = await startApprovalServer({ body: { ...APPROVAL, quorum: 4, votes: [bob, eve] } });
    const once = await runCli([...argv, '--yes'], terminal(first.env));
    expect(once.out).toContain('Your vote counts: 2 more approvals are needed.\n');
    // Votes for an older digest are listed, but do not count.
    const stale = await startApprovalServer({ body: { ...APPROVAL, votes: [bob, eve] } });
    const changed = await runCli([...argv, '--yes'], terminal(stale.env));
    expect(changed.out).toContain('Your vote counts. Earlier votes do not, because the policies changed since.');
  });

  it('finds the call on a later page, and says that more votes are needed', async () => {
    const { env } = await startCannedServer(({ method, url }) => {
      if (method === 'POST') return { body: APPROVAL };
      const first = url.searchParams.get('cursor') === null;
      return {
        body: first ? { items: [{ ...APPROVAL, txn: 'other' }], cursor: '1.x' } : { items: [APPROVAL], cursor: null },
      };
    });
    const { out } = await runCli([...argv, '--yes'], { env: { ...env, NO_COLOR: '1' }, isTty: true });
    expect(out).toContain(`${TXN} is pending`);
    expect(out).toContain('1 more approval is needed');
  });
});

it('reject does not ask, and never puts anything but a txn into a path', async () => {
  const { env, requests } = await startApprovalServer({ body: { ...APPROVAL, state: 'rejected' } });
  const { code, out } = await runCli(['reject', TXN, '--reason', 'not to Ann'], { env });
  expect(code).toBe(0);
  expect(out.endsWith(`${TXN}\trejected\n`)).toBe(true);
  expect(listPosts(requests)[0]?.url.pathname).toBe(`/admin/approvals/${TXN}/reject`);
  expect(JSON.parse(listPosts(requests)[0]?.body ?? '')).toEqual({ reason: 'not to Ann', digest: DIGEST });
  expect((await runCli(['reject', '../../freeze', '--reason', 'x'], { env })).code).toBe(1);
  expect(listPosts(requests)).toHaveLength(1);
});

describe('freeze and unfreeze', () => {
  const frozen = { scope: 'agent:bot', by: 'root', reason: 'odd', at: '2026-01-01T00:00:00.000Z' };

  it.each([
    [['freeze'], '/admin/freeze', {}, { scope: 'all', frozen: true }, 'everything\tfrozen\n'],
    [['freeze', '--agent', 'bot'], '/admin/agents/bot/freeze', {}, { agent: 'bot', frozen }, 'bot\tfrozen\n'],
    [
      ['unfreeze', '--tool', 'mail.send'],
      '/admin/unfreeze',
      { tool: 'mail.send' },
      { scope: 'tool:mail.send', frozen: false },
      'mail.send\tnot frozen\n',
    ],
    [
      ['unfreeze', '--agent', 'bot'],
      '/admin/agents/bot/unfreeze',
      {},
      { agent: 'bot', frozen: null },
      'bot\tnot frozen\n',
    ],
  ])('%j', async (argv, path, body, answer, text) => {
    const { env, requests } = await startCannedServer(() => ({ body: answer }));
    expect(await runCli([...argv, '--reason', 'odd'], { env })).toEqual({ code: 0, out: text, err: '' });
    expect([requests[0]?.method, requests[0]?.url.pathname]).toEqual(['POST', path]);
    expect(JSON.parse(requests[0]?.body ?? '')).toEqual({ reason: 'odd', ...body });
  });

  it('asks on a terminal before it freezes everything, and only then', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: { scope: 'all', frozen: true } }));
    const argv = ['freeze', '--reason', 'odd'];
    for (const types of ['n', '', 'yeah']) {
      const { code, out, err } = await runCli(argv, { env, isTty: true, types });
      expect(out).toContain('Freeze everything, for every agent? [y/N]');
      expect([code, err]).toEqual([1, 'Nothing was frozen. To freeze less, add --agent AGENT or --tool TOOL.\n']);
    }
    expect(requests).toEqual([]);
    expect((await runCli(argv, { env, isTty: true, types: 'y' })).code).toBe(0);
    expect(requests).toHaveLength(1);
    for (const more of [['--yes'], ['--json'], ['--tool', 'mail.send'], ['--agent', 'bot']]) {
      const { code, out } = await runCli([...argv, ...more], { env, isTty: true, types: 'n' });
      expect(code).toBe(0);
      expect(out).not.toContain('[y/N]');
    }
    const back = await startCannedServer(() => ({ body: { scope: 'all', frozen: false } }));
    expect((await runCli(['unfreeze', '--reason', 'x'], { env: back.env, isTty: true, types: 'n' })).code).toBe(0);
  });

  it('says when a wider freeze remains', async () => {
    const { env } = await startCannedServer(() => ({ body: { agent: 'bot', frozen: { ...frozen, scope: 'all' } } }));
    const { code, err } = await runCli(['unfreeze', '--agent', 'bot', '--reason', 'fine'], { env });
    expect(code).toBe(1);
    expect(err).toBe('Still frozen by the freeze of all (root: odd)\n');
  });

  it('never puts anything but a name into a path', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: { scope: 'all', frozen: true } }));
    for (const name of ['..', '.', 'a/../..', '%2e%2e']) {
      expect((await runCli(['freeze', '--agent', name, '--reason', 'x'], { env })).code).toBe(1);
      expect((await runCli(['breaker', name, 'open', '--reason', 'x'], { env })).code).toBe(1);
    }
    expect(requests).toEqual([]);
  });

  it('agents shows which agents are frozen', async () => {
    const items = [
      { agent: 'bot', rules: [{ rule: 'bot rule 1', allow: '*' }], frozen },
      { agent: 'calm', rules: [], frozen: null },
    ];
    const { env } = await startCannedServer(() => ({ body: { items, cursor: null } }));
    expect((await runCli(['agents'], { env })).out).toBe('bot\tfrozen\t1\troot\todd\ncalm\tactive\t0\t\t\n');
    expect(JSON.parse((await runCli(['agents', '--json'], { env })).out)).toEqual({ items, cursor: null });
  });
});

describe('breakers', () => {
  const open = { upstream: 'mail', state: 'open', by: 'root', reason: 'maintenance' };

  it('lists the breakers', async () => {
    const items = [open, { upstream: 'payments', state: 'closed', by: 'auto', reason: null }];
    const { env } = await startCannedServer(() => ({ body: { items, cursor: null } }));
    expect((await runCli(['breakers'], { env })).out).toBe('mail\topen\troot\tmaintenance\npayments\tclosed\tauto\t\n');
  });

  it('opens and closes a breaker', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: open }));
    const { code, out } = await runCli(['breaker', 'mail', 'open', '--reason', 'maintenance'], { env });
    expect([code, out]).toEqual([0, 'mail\topen\n']);
    expect(requests[0]?.url.pathname).toBe('/admin/breakers/mail/open');
    expect(JSON.parse(requests[0]?.body ?? '')).toEqual({ reason: 'maintenance' });
    const none = await startCannedServer(() => problem(404, 'not_found'));
    const { err } = await runCli(['breaker', 'mial', 'close', '--reason', 'x'], { env: none.env });
    expect(err).toContain('"oncegate breakers" lists');
  });
});

it('reload tells the version, or every fault', async () => {
  const good = await startCannedServer(() => ({ body: { version: 'abc123' } }));
  expect(await runCli(['reload'], { env: good.env })).toEqual({ code: 0, out: 'abc123\n', err: '' });
  expect([good.requests[0]?.method, good.requests[0]?.url.pathname]).toEqual(['POST', '/admin/policies/reload']);
  const bad = await startCannedServer(() =>
    problem(409, 'conflict', { faults: ['a.yaml:1:1: one', 'a.yaml:2:1: two'] }),
  );
  const { code, err } = await runCli(['reload'], { env: bad.env });
  expect(code).toBe(1);
  expect(err).toContain('  a.yaml:1:1: one\n  a.yaml:2:1: two\n"oncegate check"');
});

describe('explain --remote', () => {
  const argv = ['explain', '--remote', '--agent', 'bot', '--tool', 'payments.charge', '--args', '{"amount":5}'];
  const decision = {
    allowed: true,
    rule: 'bot rule 2',
    reason: null,
    tried: [
      { rule: 'bot rule 1', verdict: 'allow', matched: false, why: 'is a write' },
      { rule: 'bot rule 2', verdict: 'allow', matched: true, why: 'matches' },
    ],
  };

  it('asks the gateway, and prints every field of its answer', async () => {
    const body = {
      dryRun: true,
      tool: 'payments.charge',
      decision,
      hold: true,
      earlier: null,
      limits: [{ kind: 'rate', left: 3 }],
      wouldAnswer: { status: 202, state: 'held', sends: false },
    };
    const { env, requests } = await startCannedServer(() => ({ body }));
    const { code, out } = await runCli(argv, { env });
    expect(requests[0]?.url.pathname).toBe('/admin/explain');
    expect(JSON.parse(requests[0]?.body ?? '')).toEqual({ agent: 'bot', tool: 'payments.charge', args: { amount: 5 } });
    expect(code).toBe(0);
    expect(out.split('\n')).toEqual([
      'hold\tAllowed by bot rule 2.',
      'would answer\t202 held, nothing is sent',
      'tool\tpayments.charge',
      'hold\ttrue',
      'limits\t[{"kind":"rate","left":3}]',
      'tried\tallow\tbot rule 1\tis a write',
      'decides\tallow\tbot rule 2\tmatches',
      '',
    ]);
    expect(JSON.parse((await runCli([...argv, '--json'], { env })).out)).toEqual(body);
  });

  it('suggests or lists agents when the name is unknown', async () => {
    const { env } = await startCannedServer(({ url }) =>
      url.pathname === '/admin/agents'
        ? { body: { items: [{ agent: 'bot' }, { agent: 'billing' }], cursor: null } }
        : problem(404, 'not_found', { detail: 'There is no agent.' }),
    );
    const of = (agent: string) => runCli(argv.with(3, agent), { env });
    expect(await of('bto')).toMatchObject({ code: 1, err: 'There is no agent "bto"; did you mean "bot"?\n' });
    expect(await of('zzzzz')).toMatchObject({ code: 1, err: 'There is no agent "zzzzz"; there are: bot, billing\n' });
    // The agent exists, so the 404 is about something else.
    expect((await of('bot')).err).toContain('There is no agent. (not_found)');
  });

  it('exits with code 1 for a call that would be refused', async () => {
    const wouldAnswer = { status: 403, code: 'denied', retry: 'never', sends: false };
    const refused = { ...decision, allowed: false, rule: null, reason: 'no rule allows it' };
    const { env } = await startCannedServer(() => ({ body: { dryRun: true, decision: refused, wouldAnswer } }));
    const { code, out } = await runCli(argv, { env: { ...env, NO_COLOR: '1' }, isTty: true });
    expect(code).toBe(1);
    expect(out).toContain('refused: no rule allows it\n');
    expect(out).toContain('403 denied, nothing is sent');
  });
});
