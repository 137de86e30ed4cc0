import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY } from '../support/gateway.ts';
import { useConsole } from './use-console.ts';

/** More calls, sagas and approvals than the console reads at once. */

const { upstream, database, gateway, browser } = useConsole({ config: 'limits: { pendingApprovals: 1000 }\n' });
beforeAll(() => browser.signIn(gateway.url, ADMIN_KEY));
afterEach(() => expect(browser.errors.splice(0)).toEqual([]));

const main = () => browser.page.getByRole('main');
const SOON = { timeout: 10_000 };
const NO_WAIT = { headers: { prefer: 'wait=0' } };

async function hold(name: string): Promise<string> {
  const held = await gateway.call('world.mail', { id: name }, { key: name, ...NO_WAIT });
  expect(held.status).toBe(202);
  return held.body.txn;
}

async function charge(name: string, count: number): Promise<void> {
  for (let n = 0; n < count; n++) {
    const done = await gateway.call('world.charge', { id: `${name}-${n}` }, { key: `${name}-${n}` });
    expect(done.status).toBe(200);
  }
}

describe('calls under traffic', () => {
  const rows = () => main().locator('table[aria-label=Calls] tbody tr');

  it('keep their rows while new calls arrive, and a button shows all new calls', async () => {
    await charge('before', 55);
    await browser.openView('#/calls');
    await expect.poll(() => rows().count(), SOON).toBe(50);
    const first = await rows().first().getAttribute('data-key');
    await charge('more', 30);
    await main().getByRole('button', { name: 'Show 30 newer calls' }).waitFor();
    await charge('many', 30);
    await main().getByRole('button', { name: 'Show 50+ newer calls' }).waitFor();
    expect(await rows().count()).toBe(50);
    expect(await rows().first().getAttribute('data-key')).toBe(first);
    await main().getByRole('button', { name: 'Older calls' }).click();
    await expect.poll(() => rows().count(), SOON).toBe(55);
    await main().getByRole('button', { name: 'Show 50+ newer calls' }).click();
    await expect.poll(() => rows().count(), SOON).toBe(100);
    expect(await rows().first().getAttribute('data-key')).not.toBe(first);
  });

  it('are updated on older pages too', async () => {
    const old = await hold('old');
    await charge('over', 52);
    await browser.openView('#/');
    await browser.openView('#/calls');
    await main().getByRole('button', { name: 'Older calls' }).click();
    const row = main().locator(`tr[data-key="${old}"]`);
    await row.getByText('held').waitFor();
    const { digest } = (await gateway.admin('GET', `/admin/approvals/${old}`)).body;
    await gateway.admin('POST', `/admin/approvals/${old}/reject`, { reason: 'no', digest });
    await row.getByText('rejected').waitFor();
  });
});

it('sagas are updated on older pages too', async () => {
  const open = async (name: string) => {
    const headers = { 'content-type': 'application/json' };
    const body = JSON.stringify({ name });
    return (await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY, headers, body })).body.saga as string;
  };
  const first = await open('first');
  for (let n = 0; n < 50; n++) await open(`later ${n}`);
  await browser.openView('#/sagas');
  const rows = main().locator('table[aria-label=Sagas] tbody tr');
  await expect.poll(() => rows.count(), SOON).toBe(50);
  await main().getByRole('button', { name: 'Older sagas' }).click();
  const row = main().locator(`tr[data-key="${first}"]`);
  await row.getByText('open').waitFor();
  for (let n = 0; n < 5; n++) await open(`last ${n}`);
  await gateway.admin('POST', `/admin/sagas/${first}/rollback?wait=5`, { reason: 'no' });
  await row.getByText('rolled back').waitFor();
  await expect.poll(() => rows.count(), SOON).toBe(56);
});

describe('an approval with many newer ones', () => {
  it('stays pending, and can be decided in the list and on its own page', async () => {
    const first = await hold('first');
    await browser.openView('#/approvals');
    const card = main().locator(`article[data-key="${first}"]`);
    await card.waitFor();
    for (let n = 0; n < 205; n += 15) await Promise.all(Array.from({ length: 15 }, (_, i) => hold(`later-${n + i}`)));
    await main().getByText('there are older ones').waitFor();
    expect(await card.locator('header').textContent()).toContain('pending');
    expect(await card.getByRole('button').count()).toBe(2);

    await browser.openView(`#/approvals/${first}`);
    await card.getByRole('button', { name: 'Reject…' }).click();
    await browser.confirm('Reject', 'not this one');
    await card.getByText('not this one').waitFor();

    await browser.openView('#/approvals');
    const shown = main().getByRole('article');
    await shown.first().waitFor();
    const before = await shown.count();
    await main().getByRole('button', { name: 'Show older ones' }).click();
    await expect.poll(() => shown.count(), SOON).toBeGreaterThan(before);
  });
});

it('calls in doubt are shown even if too many calls are open to count them', async () => {
  // Vacuum first, so that the inserted rows are the first of the table and of its index.
  await database.query('vacuum full open_calls');
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, identity, fingerprint, kind, policy_version)
       select ('00000000-0000-8000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'tester', 'world.charge', 'key', sha256(i::text::bytea), 'key', 'v' from generate_series(1, 2000) i
       returning txn
     )
     insert into open_calls (txn, state, fence, due_at) select txn, 'ready', 1, now() + interval '1 day' from made`,
  );
  const loseAnswer = async (id: string) => {
    await upstream.plan({ match: { id }, do: ['drop'] });
    expect((await gateway.call('world.note', { id }, { key: id })).status).toBe(504);
  };
  for (const id of ['lost-1', 'lost-2', 'lost-3']) await loseAnswer(id);
  await browser.openView('#/');
  await expect.poll(() => main().locator('.need').filter({ hasText: 'In doubt' }).count(), SOON).toBe(3);
  const { open } = (await gateway.admin('GET', '/admin/stats')).body;
  expect(open).toMatchObject({ inDoubt: 0, more: true });
  for (const id of ['lost-4', 'lost-5']) await loseAnswer(id);
  await main().locator('.need').filter({ hasText: '1+ more' }).filter({ hasText: 'in doubt' }).waitFor();
});
