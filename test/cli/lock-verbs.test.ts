import { describe, expect, it } from 'vitest';
import { runCli, startCannedServer } from './terminal.ts';

const LOCK = {
  resource: 'card/4242',
  mode: 'exclusive',
  for: 'call',
  holder: '7c0e6a52-8a0c-8f00-9a52-0123456789ab',
  token: 17,
  txn: '7c0e6a52-8a0c-8f00-9a52-0123456789ab',
  agent: 'billing-bot',
  tool: 'payments.charge',
  since: '2026-01-01T00:00:00.000Z',
};

describe('locks', () => {
  it('sends the filters, and prints holder and time of each lock', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: { items: [LOCK], cursor: null } }));
    const { code, out } = await runCli(['locks', '--agent', 'billing-bot', '--holder', LOCK.holder], { env });
    expect(code).toBe(0);
    expect(requests[0]?.url.pathname).toBe('/admin/locks');
    expect(Object.fromEntries(requests[0]?.url.searchParams ?? [])).toEqual({
      agent: 'billing-bot',
      holder: LOCK.holder,
      limit: '50',
    });
    const cells = [LOCK.resource, 'exclusive', 'call', LOCK.holder, LOCK.agent, LOCK.tool, LOCK.since];
    expect(out).toContain(cells.join('\t'));
  });

  it('says so when nothing is locked', async () => {
    const { env } = await startCannedServer(() => ({ body: { items: [], cursor: null } }));
    expect((await runCli(['locks'], { env, isTty: true })).out).toContain('Nothing is locked.');
  });
});
