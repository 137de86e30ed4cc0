import { once } from 'node:events';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { beforeEach, expect, it } from 'vitest';
import { ADMIN_KEY } from '../support/gateway.ts';
import { useConsole } from './use-console.ts';

/** The console while the gateway is down, slow or silent. */

const { gateway, browser } = useConsole();
beforeEach(() => browser.signIn(gateway.url, ADMIN_KEY));

const liveIndicator = () => browser.page.locator('.pace');

it('stays signed in while the gateway cannot answer, and continues when it can', async () => {
  await browser.page.route('**/admin/stats', (route) => route.fulfill({ status: 503, body: '{"title":"Not yet"}' }));
  await browser.page.reload();
  await browser.page.getByRole('alert').getByText('Not yet').waitFor();
  expect(await browser.page.evaluate("sessionStorage.getItem('oncegate.key')")).toBe(ADMIN_KEY);
  await browser.page.unroute('**/admin/stats');
  await browser.page.getByRole('link', { name: 'Overview' }).waitFor();
  await liveIndicator().getByText('live', { exact: true }).waitFor();
});

it('loads a view once at a time, and not for every event', async () => {
  let requests = 0;
  let concurrent = 0;
  let maxConcurrent = 0;
  await browser.page.route('**/admin/calls?*', async (route) => {
    requests += 1;
    concurrent += 1;
    maxConcurrent = Math.max(maxConcurrent, concurrent);
    await new Promise((resolve) => setTimeout(resolve, 300));
    await route.continue();
    concurrent -= 1;
  });
  await browser.openView('#/calls');
  await browser.page.getByRole('heading', { name: 'Calls' }).waitFor();
  const startedAt = performance.now();
  let n = 0;
  const newer = browser.page.getByRole('button', { name: /Show \d+\+? newer/ });
  while (performance.now() - startedAt < 4_000) {
    await gateway.call('world.charge', { id: 'busy' }, { key: `busy-${++n}` });
    if (n % 20 === 0 && (await newer.count()) > 0) await newer.click({ timeout: 500 }).catch(() => {});
  }
  expect(requests).toBeGreaterThan(1);
  expect(maxConcurrent).toBe(1);
  await browser.page.unrouteAll({ behavior: 'wait' });
});

it('waits for the end of an answer on a slow connection', async () => {
  const { body } = await gateway.call('world.charge', { id: 'slow' }, { key: 'slow-line' });
  const slowProxy = createServer((incoming, response) => {
    const { method, url, headers } = incoming;
    const outgoing = request({ port: gateway.port, host: '127.0.0.1', method, path: url, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 0, answer.headers).flushHeaders();
      const isSlow = url?.startsWith('/admin/calls?') === true;
      // Longer than the console waits for an answer to begin (15 s).
      setTimeout(() => answer.pipe(response), isSlow ? 16_000 : 0);
    });
    incoming.pipe(outgoing.on('error', () => response.destroy()));
  }).listen(0, '127.0.0.1');
  await once(slowProxy, 'listening');
  try {
    await browser.signIn(`http://127.0.0.1:${(slowProxy.address() as AddressInfo).port}`, ADMIN_KEY);
    await browser.openView('#/calls');
    await browser.page.locator(`tr[data-key="${body.txn}"]`).waitFor({ timeout: 25_000 });
  } finally {
    await browser.page.goto('about:blank');
    slowProxy.closeAllConnections();
    slowProxy.close();
  }
}, 90_000);

it('closes open dialogs when a person signs out', async () => {
  const held = await gateway.call('world.mail', { id: 'left' }, { key: 'left', headers: { prefer: 'wait=0' } });
  await browser.openView(`#/approvals/${held.body.txn}`);
  await browser.page.getByRole('button', { name: 'Approve…' }).click();
  await browser.page.getByRole('dialog').waitFor();
  await browser.page.evaluate("document.querySelector('#head button').click()");
  await browser.page.getByLabel('Key of a person').waitFor();
  expect(await browser.page.getByRole('dialog').count()).toBe(0);
});

it('shows since when it is not live if the gateway stops answering', async () => {
  await browser.openView('#/approvals');
  await liveIndicator().getByText('live', { exact: true }).waitFor();
  gateway.signal('SIGSTOP');
  try {
    await liveIndicator()
      .getByText(/^not live since \d\d:\d\d:\d\d$/)
      .waitFor({ timeout: 25_000 });
    await browser.page.getByRole('alert').getByText('The gateway does not answer').waitFor({ timeout: 40_000 });
  } finally {
    gateway.signal('SIGCONT');
  }
  await liveIndicator().getByText('live', { exact: true }).waitFor({ timeout: 30_000 });
  await browser.page.getByRole('alert').waitFor({ state: 'detached' });
}, 90_000);
