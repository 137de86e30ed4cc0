import { beforeAll, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY } from '../support/gateway.ts';
import { findLowContrast, READ_COLOURS } from './contrast.ts';
import { useConsole } from './use-console.ts';

const EVIL = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\${alert(1)}"><b>`;
const LONG = 'w'.repeat(300);

/** The address of every view, each with hostile text in it. */
const views = new Map<string, string>();

const { upstream, gateway, browser } = useConsole();
beforeAll(async () => {
  await fillWithEvil();
  await browser.signIn(gateway.url, ADMIN_KEY);
});

async function postAsAgent(path: string, body: object) {
  const headers = { 'content-type': 'application/json' };
  return (await gateway.request('POST', path, { key: AGENT_KEY, headers, body: JSON.stringify(body) })).body;
}

/** Puts hostile text into every field that an outsider can fill. */
async function fillWithEvil(): Promise<void> {
  const args = { id: 'e', [EVIL]: EVIL, long: LONG, deep: [{ [EVIL]: [EVIL] }] };
  const { saga } = await postAsAgent('/v1/sagas', { name: EVIL });
  const inSaga = { 'oncegate-saga': saga };
  const charged = await gateway.call('world.charge', args, {
    key: EVIL.replaceAll(/[^!-~]|["\\]/g, ''),
    headers: inSaga,
  });
  expect(charged.body).toMatchObject({ state: 'succeeded' });
  await postAsAgent(`/v1/sagas/${saga}/savepoints`, { name: 'here' });
  const noted = await gateway.call('world.note', { ...args, id: 'final' }, { key: 'note', headers: inSaga });
  expect(noted.body).toMatchObject({ state: 'succeeded' });
  await postAsAgent(`/v1/sagas/${saga}/rollback?wait=10`, { reason: `${EVIL} ${LONG}` });
  const parked = await gateway.admin('GET', `/admin/sagas/${saga}`);
  expect(parked.body.state).toBe('parked');
  const held = await gateway.call('world.mail', args, { key: 'held', headers: { prefer: 'wait=0' } });
  await upstream.plan({ match: { id: 'lost' }, do: ['drop'] });
  const lost = await gateway.call('world.note', { ...args, id: 'lost' }, { key: 'lost' });
  await gateway.admin('POST', `/admin/calls/${lost.body.txn}/resolve`, {
    verdict: 'applied',
    reason: EVIL,
    result: { [EVIL]: EVIL, long: LONG },
  });
  await upstream.plan({ match: { id: 'lost again' }, do: ['drop'] });
  await gateway.call('world.note', { ...args, id: 'lost again' }, { key: 'lost again' });
  await gateway.admin('POST', '/admin/agents/tester/freeze', { reason: `${EVIL} ${LONG}` });
  await gateway.admin('POST', '/admin/breakers/world/open', { reason: EVIL });
  await gateway.call(encodeURIComponent(EVIL), args);
  const { receipt } = (await gateway.admin('GET', `/admin/calls/${lost.body.txn}`)).body;
  for (const [name, hash] of [
    ['overview', '#/'],
    ['calls', '#/calls'],
    ['call', `#/calls/${lost.body.txn}`],
    ['approvals', '#/approvals'],
    ['approval', `#/approvals/${held.body.txn}`],
    ['sagas', '#/sagas'],
    ['saga', `#/sagas/${saga}`],
    ['controls', '#/controls'],
    ['policies', '#/policies'],
    ['log', '#/log'],
    ['proof', `#/log/${receipt.leaf}`],
    ['filtered', `#/calls?agent=${encodeURIComponent(EVIL)}`],
    ['nowhere', `#/${encodeURIComponent(EVIL)}`],
  ] as const)
    views.set(name, hash);
}

/** Resolves when the last change is on the screen. */
async function awaitFrames(): Promise<void> {
  for (let i = 0; i < 3; i += 1) await browser.page.evaluate('new Promise(requestAnimationFrame).then(() => 0)');
}

/** Resolves when the view is drawn. */
async function openAndAwait(name: string): Promise<void> {
  await browser.openView('#/policies');
  await browser.page.getByRole('button', { name: 'Explain' }).waitFor();
  await browser.openView(views.get(name) ?? '');
  if (name !== 'policies') await browser.page.getByRole('button', { name: 'Explain' }).waitFor({ state: 'detached' });
}

describe('untrusted text', () => {
  it.each([
    'overview',
    'calls',
    'call',
    'approvals',
    'approval',
    'sagas',
    'saga',
    'controls',
    'policies',
    'log',
    'proof',
    'filtered',
    'nowhere',
  ])('stays text in %s, and fits at any width', async (name) => {
    await openAndAwait(name);
    const found = await browser.page.evaluate(
      `({ images: document.querySelectorAll('img, iframe, object, script:not([src]), main b b').length, pwned: window.pwned })`,
    );
    expect(found).toEqual({ images: 0 });
    for (const width of [400, 1280]) {
      await browser.page.setViewportSize({ width, height: 800 });
      expect(
        await browser.page.evaluate('document.documentElement.scrollWidth - innerWidth'),
        `${width}`,
      ).toBeLessThanOrEqual(0);
    }
  });

  it.each(['overview', 'call', 'approval', 'sagas', 'saga', 'controls'])('is shown literally in %s', async (name) => {
    await openAndAwait(name);
    await browser.page.getByRole('main').getByText('<img src=x onerror').first().waitFor();
  });

  it('cannot reverse its direction or hide characters', async () => {
    const to = '\u202Emoc.elpmaxe@ecila\u202C';
    const args = { id: 'bidi', to, 'a\u200Bb': '\u3164 \u{E0041}', note: '\u2028\u0085\u00AD' };
    await gateway.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'on' });
    await gateway.admin('POST', '/admin/breakers/world/close', { reason: 'on' });
    const held = await gateway.call('world.mail', args, { key: 'bidi', headers: { prefer: 'wait=0' } });
    await browser.openView(`#/approvals/${held.body.txn}`);
    const shown = browser.page.getByLabel('Arguments', { exact: true });
    await shown.getByText('moc.elpmaxe').waitFor();
    const text = await shown.textContent();
    expect(text).toContain('"to": "\\u202Emoc.elpmaxe@ecila\\u202C"');
    expect(text).toContain('"a\\u200Bb": "\\u3164 \\u{E0041}"');
    expect(text).toContain('"note": "\\u2028\\u0085\\u00AD"');
    expect(await shown.locator('.hidden-character').count()).toBe(6);

    const { saga } = await postAsAgent('/v1/sagas', { name: `Payout\u202E` });
    await browser.openView('#/sagas');
    const row = browser.page.locator(`tr[data-key="${saga}"]`);
    await row.waitFor();
    expect(await row.textContent()).toContain('Payout\\u202E');
    expect(await browser.page.evaluate(`/[\\p{Cf}\\p{Zl}\\p{Zp}]/u.test(document.body.textContent)`)).toBe(false);
  });

  it('causes no error in the browser and no request elsewhere', () => {
    expect(browser.errors).toEqual([]);
    expect(browser.requestedUrls.filter((url) => !url.startsWith(gateway.url))).toEqual([]);
  });
});

describe('contrast', () => {
  it.each(['light', 'dark'] as const)('is at least 4.5 for all text, %s', async (colorScheme) => {
    await browser.page.emulateMedia({ colorScheme });
    for (const name of ['overview', 'call', 'approvals', 'saga', 'controls', 'policies', 'log']) {
      await openAndAwait(name);
      expect(findLowContrast((await browser.page.evaluate(READ_COLOURS)) as never), name).toEqual([]);
    }
  });
});

describe('when an event arrives', () => {
  it.each(['overview', 'calls', 'approvals'])('nothing moves in %s', async (name) => {
    await gateway.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'on' });
    await gateway.admin('POST', '/admin/breakers/world/close', { reason: 'on' });
    await openAndAwait(name);
    await browser.page.getByText('live').waitFor();
    // Wait until the page is redrawn after an event, so that only later changes are recorded.
    const redrawn = name === 'approvals' ? undefined : browser.page.waitForResponse(/\/admin\/(?:stats|calls)/);
    await gateway.call('world.charge', { id: `before-${name}` }, { key: `before-${name}` });
    await redrawn;
    await awaitFrames();
    await browser.page.evaluate(`
      window.moved = [];
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries())
          window.moved.push(...entry.sources.map(({ node }) => node?.outerHTML?.slice(0, 200) ?? String(node)));
      }).observe({ type: 'layout-shift', buffered: false });`);
    const held = await gateway.call(
      'world.mail',
      { id: `new-${name}` },
      { key: `new-${name}`, headers: { prefer: 'wait=0' } },
    );
    await gateway.call('world.charge', { id: `after-${name}` }, { key: `after-${name}` });
    const shown = {
      overview: `a[href="#/approvals/${held.body.txn}"]`,
      calls: 'text=/Show \\d+ newer call/',
      approvals: `a[title="${held.body.txn}"]`,
    }[name];
    await browser.page
      .locator(shown ?? '')
      .first()
      .waitFor();
    await awaitFrames();
    expect(await browser.page.evaluate('window.moved')).toEqual([]);
  });
});
