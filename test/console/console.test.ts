import { readFileSync } from 'node:fs';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, VIEWER_KEY, writePolicies } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { APPROVER_KEY, buildConsolePolicies } from './console-policies.ts';
import { useConsole } from './use-console.ts';

let id = '';

const { upstream, gateway, browser } = useConsole();
beforeEach(() => {
  id = uniqueId('console');
});
afterEach(() => {
  expect(browser.errors.splice(0)).toEqual([]);
  expect(browser.requestedUrls.filter((url) => !url.startsWith(gateway.url))).toEqual([]);
});

const holdCall = async (args: object) =>
  (await gateway.call('world.mail', args, { key: id, headers: { prefer: 'wait=0' } })).body.txn as string;
const main = () => browser.page.getByRole('main');
const heading = (name: string) => main().getByRole('heading', { level: 1, name, exact: true });

async function createSaga(...names: readonly string[]): Promise<string> {
  const headers = { 'content-type': 'application/json' };
  const body = JSON.stringify({ name: `saga ${id}` });
  const { saga } = (await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY, headers, body })).body;
  for (const name of names) {
    const done = await gateway.call('world.charge', { id: name }, { key: name, headers: { 'oncegate-saga': saga } });
    expect(done.status).toBe(200);
  }
  return saga;
}

describe('the files', () => {
  it('have strict security headers, and are not sent again if unchanged', async () => {
    const page = await gateway.request('GET', '/');
    const policy = page.headers.get('content-security-policy');
    for (const directive of [
      "default-src 'self'",
      "script-src 'self'",
      "style-src 'self'",
      "frame-ancestors 'none'",
      "require-trusted-types-for 'script'",
    ])
      expect(policy).toContain(directive);
    expect(policy).not.toMatch(/unsafe|data:|https?:/);
    expect(page.body).not.toMatch(/<style|<script>| style=| on\w+=/);
    for (const [name, value] of [
      ['x-content-type-options', 'nosniff'],
      ['referrer-policy', 'no-referrer'],
      ['cache-control', 'no-cache'],
    ] as const)
      expect(page.headers.get(name)).toBe(value);
    const etag = page.headers.get('etag') ?? '';
    const again = await gateway.request('GET', '/', { headers: { 'if-none-match': `"other", W/${etag}` } });
    expect([again.status, again.body]).toEqual([304, '']);
    expect((await gateway.request('GET', '/', { headers: { 'if-none-match': '"other"' } })).status).toBe(200);
  });

  it('are in the npm package and in the container image', () => {
    const { files } = JSON.parse(readFileSync('package.json', 'utf8')) as { files: string[] };
    expect(files).toContain('console');
    expect(readFileSync('Dockerfile', 'utf8')).toMatch(/^COPY console console$/m);
    expect(readFileSync('.dockerignore', 'utf8')).not.toMatch(/^console$/m);
  });

  it('are those that a browser needs and no others', async () => {
    expect((await gateway.request('GET', '/console/main.js')).headers.get('content-type')).toMatch(/^text\/javascript/);
    for (const path of ['types.d.ts', 'tsconfig.json', '../package.json', '%2e%2e/package.json'])
      expect((await gateway.request('GET', `/console/${path}`)).status, path).toBe(404);
  });
});

describe('signing in', () => {
  it('says what to do about a wrong key, and keeps the right key in this tab only', async () => {
    const { page } = browser;
    await page.goto(gateway.url);
    await page.getByLabel('Key of a person').fill('no-such-key');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').getByText('No person has this bearer key.').waitFor();
    await page
      .getByRole('alert')
      .getByText(/Sign in with the key of a person under "people"/)
      .waitFor();
    // The browser logs the 401 itself.
    expect(browser.errors.splice(0)).toEqual([expect.stringMatching(/401/)]);
    await browser.signIn(gateway.url, ADMIN_KEY);
    const kept = await page.evaluate('[Object.values(sessionStorage), localStorage.length, document.cookie]');
    expect(kept).toEqual([[ADMIN_KEY], 0, '']);
    await page.reload();
    await page.getByText('root admin').waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByLabel('Key of a person').waitFor();
    expect(await page.evaluate('sessionStorage.length')).toBe(0);
  });

  it('shows a viewer everything, and disables what would be refused', async () => {
    const txn = await holdCall({ id });
    await browser.signIn(gateway.url, VIEWER_KEY);
    await browser.openView(`#/approvals/${txn}`);
    const approve = main().getByRole('button', { name: 'Approve…' });
    await approve.waitFor();
    expect(await approve.isDisabled()).toBe(true);
    await browser.openView('#/controls');
    const freeze = main().getByRole('button', { name: 'Freeze everything…' });
    await freeze.waitFor();
    expect(await freeze.isDisabled()).toBe(true);
  });

  it('signs out a person whose key was removed from the policies', async () => {
    await browser.signIn(gateway.url, APPROVER_KEY);
    const policies = buildConsolePolicies(upstream.url);
    await writePolicies(gateway, { 'console.yaml': (policies['console.yaml'] ?? '').replace(/^ {2}ada:.*$/m, '') });
    await gateway.admin('POST', '/admin/policies/reload');
    await main()
      .getByText(/Your key is no longer valid|No person has this bearer key/)
      .waitFor();
    await writePolicies(gateway, policies);
    await gateway.admin('POST', '/admin/policies/reload');
    // The page may have sent one more request, which was refused.
    browser.errors.splice(0);
  });
});

describe('a person', () => {
  beforeAll(() => browser.signIn(gateway.url, ADMIN_KEY));

  it('approves a held call that arrived while the page was open, and sees it succeed', async () => {
    await browser.openView('#/approvals');
    await heading('Approvals').waitFor();
    const txn = await holdCall({ id, amount: 4200 });
    const card = main()
      .getByRole('article')
      .filter({ has: browser.page.locator(`a[title="${txn}"]`) });
    await card.getByText('"amount": 4200').waitFor();
    expect(await upstream.effects(id)).toHaveLength(0);
    await card.getByRole('button', { name: 'Approve…' }).click();
    await browser.page.getByRole('dialog').getByText('"amount": 4200').waitFor();
    await browser.confirm('Approve', 'Ann asked for it');
    await card.getByText('Ann asked for it').waitFor();
    await card.getByText('approved').first().waitFor();
    await card.getByRole('link').first().click();
    await heading('Call').waitFor();
    await main().locator('.subject').getByText('succeeded').waitFor();
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('sees why the gateway refuses a rejection', async () => {
    const txn = await holdCall({ id });
    await browser.openView(`#/approvals/${txn}`);
    await main().getByRole('button', { name: 'Reject…' }).click();
    // Another person decides first.
    const [shown] = (await gateway.admin('GET', '/admin/approvals?state=pending')).body.items.filter(
      (each: { txn: string }) => each.txn === txn,
    );
    await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { reason: 'fine', digest: shown.digest });
    const dialog = browser.page.getByRole('dialog');
    await dialog.getByLabel('Reason').fill('no');
    await dialog.getByRole('button', { name: 'Reject', exact: true }).click();
    await dialog.getByRole('alert').getByText('The current state does not allow this').waitFor();
    await dialog
      .getByRole('alert')
      .getByText(/Something changed after this page was loaded/)
      .waitFor();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    expect(browser.errors.splice(0)).toEqual([expect.stringMatching(/409/)]);
  });

  it('resolves a doubt from the overview, and the agent gets the result', async () => {
    await upstream.plan({ match: { id }, do: ['drop'] });
    const lost = await gateway.call('world.note', { id }, { key: id });
    expect(lost.status).toBe(504);
    await browser.openView('#/');
    await main().locator(`a[href="#/calls/${lost.body.txn}"]`).filter({ hasText: 'Resolve' }).click();
    await main().getByRole('button', { name: 'Resolve…' }).click();
    const dialog = browser.page.getByRole('dialog');
    await dialog.getByLabel('Verdict').selectOption('applied');
    await dialog.getByLabel('Result').fill('{"id": 9007199254740993');
    await dialog.getByLabel('Reason').fill('seen in the outbox');
    await dialog.getByRole('button', { name: 'Resolve', exact: true }).click();
    await dialog.getByText('The result is not valid JSON').waitFor();
    // The gateway judges the typed text, not what a browser would parse from it.
    for (const typed of ['{"id": 9007199254740993}', '{"id": 1, "id": 2}']) {
      await dialog.getByLabel('Result').fill(typed);
      await dialog.getByRole('button', { name: 'Resolve', exact: true }).click();
      await dialog
        .getByRole('alert')
        .getByText(typed.includes('2}') ? /twice/ : /precision|exact|9007199254740993/)
        .first()
        .waitFor();
      expect(browser.errors.splice(0)).toEqual([expect.stringMatching(/400/)]);
    }
    await dialog.getByLabel('Result').fill('{"id": "m-1"}');
    await browser.confirm('Resolve', 'seen in the outbox');
    await main().locator('.subject').getByText('succeeded').waitFor();
    await main().getByText('seen in the outbox').waitFor();
    expect((await gateway.call('world.note', { id }, { key: id })).body).toMatchObject({
      replayed: true,
      result: { id: 'm-1' },
    });
  });

  it('sees the plan of a rollback, rolls back, and sees each undo', async () => {
    const saga = await createSaga(`${id}-a`, `${id}-b`);
    await browser.openView(`#/sagas/${saga}`);
    await main().getByRole('button', { name: 'Roll back…' }).click();
    const dialog = browser.page.getByRole('dialog');
    await dialog.getByText('2 steps would be undone').waitFor();
    expect(await dialog.getByRole('listitem').count()).toBe(2);
    expect((await gateway.admin('GET', `/admin/sagas/${saga}`)).body.state).toBe('open');
    expect(await upstream.effects(`${id}-a`)).toHaveLength(1);
    await browser.confirm('Roll back', 'not wanted');
    await main().locator('.subject').getByText('rolled back').waitFor();
    await main().getByRole('table', { name: 'Steps' }).getByText('done').nth(1).waitFor();
    expect(await main().locator('svg.steps a').count()).toBe(2);
    expect(await upstream.effects(`${id}-a`)).toHaveLength(2);
  });

  it('rolls back nothing that the plan did not show, and sees the new plan', async () => {
    const saga = await createSaga(`${id}-a`);
    await browser.openView(`#/sagas/${saga}`);
    await main().getByRole('button', { name: 'Roll back…' }).click();
    const dialog = browser.page.getByRole('dialog');
    await dialog.getByText('1 step would be undone').waitFor();
    await gateway.call('world.charge', { id: `${id}-b` }, { key: `${id}-b`, headers: { 'oncegate-saga': saga } });
    await dialog.getByLabel('Reason').fill('as shown');
    await dialog.getByRole('button', { name: 'Roll back', exact: true }).click();
    await dialog.getByText('2 steps would be undone').waitFor();
    await dialog.getByText('Nothing was rolled back').waitFor();
    // The browser logs every answer with status 400 or more.
    expect(browser.errors.splice(0)).toEqual([expect.stringContaining('409')]);
    expect((await gateway.admin('GET', `/admin/sagas/${saga}`)).body.state).toBe('open');
    await dialog.getByRole('button', { name: 'Roll back', exact: true }).click();
    await main().locator('.subject').getByText('rolled back').waitFor();
  });

  it('undoes one call', async () => {
    const done = await gateway.call('world.charge', { id }, { key: id });
    await browser.openView(`#/calls/${done.body.txn}`);
    await main().getByRole('button', { name: 'Undo this call…' }).click();
    await browser.page.getByRole('dialog').getByText(done.body.result.id).waitFor();
    await browser.confirm('Undo', 'a mistake');
    await main().getByText('Compensation', { exact: true }).waitFor();
    expect(await upstream.effects(id)).toHaveLength(2);
  });

  it('freezes and unfreezes an agent, and everything only after typing FREEZE', async () => {
    await browser.openView('#/controls');
    await main().getByRole('button', { name: 'Freeze tester' }).click();
    await browser.confirm('Freeze', 'it runs wild');
    await main().getByText('it runs wild').waitFor();
    expect((await gateway.call('world.charge', { id }, { key: id })).body.code).toBe('frozen');
    await main().getByRole('button', { name: 'Unfreeze tester' }).click();
    await browser.confirm('Unfreeze', 'it is tame');
    await main().getByRole('button', { name: 'Freeze tester' }).waitFor();
    expect((await gateway.call('world.charge', { id }, { key: id })).status).toBe(200);

    await main().getByRole('button', { name: 'Freeze everything…' }).click();
    const dialog = browser.page.getByRole('dialog');
    await dialog.getByLabel('Reason').fill('fire');
    await dialog.getByRole('button', { name: 'Freeze everything' }).click();
    expect((await gateway.admin('GET', '/admin/freezes')).body.items).toEqual([]);
    await dialog.getByLabel('Type FREEZE to confirm').fill('FREEZE');
    await browser.confirm('Freeze everything', 'fire');
    await main().getByText('Everything is frozen').waitFor();
    await main().getByRole('button', { name: 'Unfreeze everything…' }).click();
    await browser.confirm('Unfreeze everything', 'put out');
    await main().getByText('Kill switch').waitFor();
  });

  it('opens and closes a breaker, and explains a call', async () => {
    await browser.openView('#/controls');
    await main().getByRole('button', { name: 'Open world' }).click();
    await browser.confirm('Open', 'maintenance');
    await main().getByRole('button', { name: 'Close world' }).click();
    await browser.confirm('Close', 'over');
    await main().getByRole('button', { name: 'Open world' }).waitFor();
    await browser.openView('#/policies');
    await main().getByLabel('Tool').fill('world.mail');
    await main().getByLabel('Arguments (JSON)').fill('{"id": "x"}');
    await main().getByRole('button', { name: 'Explain' }).click();
    await main().getByText('202 held').waitFor();
    await main().getByRole('table', { name: 'Rules tried' }).getByText('yes').first().waitFor();
    // The page keeps the explanation when it is redrawn.
    const redrawn = browser.page.waitForResponse((response) => response.url().endsWith('/admin/policies'));
    await gateway.admin('POST', '/admin/policies/reload');
    await redrawn;
    await browser.page.evaluate('new Promise(requestAnimationFrame)');
    await main().getByText('202 held').waitFor();
  });

  it('finds the receipt of a call in the signed log', async () => {
    const done = await gateway.call('world.charge', { id }, { key: id });
    await browser.openView(`#/calls/${done.body.txn}`);
    await main()
      .getByRole('link', { name: done.body.receipt.leaf.slice(0, 16) })
      .click();
    await heading('Proof').waitFor();
    await main().getByText(done.body.receipt.leaf).waitFor();
    await browser.openView('#/log');
    await main().getByLabel('Signed checkpoint').waitFor();
  });
});

it('shows all links and full tool names on the screen of a phone', async () => {
  const { page } = browser;
  const wide = page.viewportSize() ?? { width: 1280, height: 860 };
  await browser.signIn(gateway.url, ADMIN_KEY);
  await page.setViewportSize({ width: 390, height: 844 });
  try {
    await browser.openView('#/log');
    await heading('Log').waitFor();
    const links = await page.locator('#nav a').all();
    const edges = await Promise.all(links.map(async (link) => (await link.boundingBox()) ?? { x: -1, width: 0 }));
    expect(edges).toHaveLength(7);
    expect(edges.filter(({ x, width }) => x < 0 || x + width > 390)).toEqual([]);
    await browser.openView('#/');
    await heading('Overview').waitFor();
    await gateway.call('world.charge', { id }, { key: id });
    const name = main().locator('.latest .cut').filter({ hasText: 'world.charge' }).first();
    await name.waitFor();
    expect(
      await name.evaluate(
        (shown: { scrollWidth: number; clientWidth: number }) => shown.scrollWidth - shown.clientWidth,
      ),
    ).toBe(0);
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(390);
  } finally {
    await page.setViewportSize(wide);
  }
});
