import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { startUpstream, type Upstream } from '../faults/upstream.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { ADMIN_KEY, type Gateway, startGateway } from '../support/gateway.ts';
import { Browser } from './browser.ts';
import { consolePolicies } from './console-policies.ts';

/** More than the console reads at once, of everything. */

let upstream: Upstream;
let database: TestDatabase;
let gateway: Gateway;
let browser: Browser;

beforeAll(async () => {
  [upstream, database] = await Promise.all([startUpstream(), freshDatabase()]);
  [gateway, browser] = await Promise.all([
    startGateway({
      policies: consolePolicies(upstream.url),
      databaseUrl: database.url,
      config: 'limits: { pendingApprovals: 1000 }\n',
    }),
    Browser.start(),
  ]);
  await browser.signIn(gateway.url, ADMIN_KEY);
});
afterAll(async () => {
  await browser?.stop();
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});
afterEach(() => expect(browser.complaints.splice(0)).toEqual([]));

const main = () => browser.page.getByRole('main');
const wait = { headers: { prefer: 'wait=0' } };

async function hold(name: string): Promise<string> {
  const held = await gateway.call('world.mail', { id: name }, { key: name, ...wait });
  expect(held.status).toBe(202);
  return held.body.txn;
}

describe('an approval that others came after', () => {
  it('still waits, and can be decided, in its place and at its address', async () => {
    const first = await hold('first');
    await browser.go('#/approvals');
    const card = main().locator(`article[data-key="${first}"]`);
    await card.waitFor();
    for (let n = 0; n < 205; n += 15) await Promise.all(Array.from({ length: 15 }, (_, i) => hold(`later-${n + i}`)));
    await main().getByText('of more that wait').waitFor();
    expect(await card.locator('header').textContent()).toContain('pending');
    expect(await card.getByRole('button').count()).toBe(2);

    await browser.go(`#/approvals/${first}`);
    await card.getByRole('button', { name: 'Reject…' }).click();
    await browser.confirm('Reject', 'not this one');
    await card.getByText('not this one').waitFor();

    await browser.go('#/approvals');
    const shown = main().getByRole('article');
    await shown.first().waitFor();
    const before = await shown.count();
    await main().getByRole('button', { name: 'Show longer-waiting ones' }).click();
    await expect.poll(() => shown.count()).toBeGreaterThan(before);
  });
});
