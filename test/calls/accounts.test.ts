import { beforeEach, describe, expect, it } from 'vitest';
import { dumpCallRows } from '../support/call-rows.ts';
import { testerYaml } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway } from '../support/use-gateway.ts';

const OURS = 'account-ours-55aa';
const THEIRS = 'account-theirs-77bb';

let shouldCutPosts = false;
let received: string[] = [];

/** A service with many accounts. It cuts the connection of every POST while `shouldCutPosts` is true; every GET finds an order. */
const service = useHttpServer((request, response) => {
  received.push(`${request.method} ${request.url}`);
  if (shouldCutPosts && request.method === 'POST') return void request.socket.destroy();
  response.writeHead(200, { 'content-type': 'application/json' }).end('{"found":true}');
});
const RETRY = 'retry: { attempts: 100, base: 100ms, max: 200ms, within: 1h }';
const { database, gateway } = useGateway({
  upstream: 'none',
  env: { ACCOUNT: OURS },
  policies: () => `
upstreams:
  bank: { adapter: http, url: "${service.url}/accounts/\${env.ACCOUNT}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:
  bank.pay:
    upstream: bank
    request: { method: POST, path: /pay, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    ${RETRY}
  bank.order:
    upstream: bank
    request: { method: POST, path: /order, body: "\${args}" }
    once: { by: probe, probe: { tool: bank.find, args: {}, applied: "result.found" }, settles: 100ms }
    ${RETRY}
  bank.find: { upstream: bank, effect: read, request: { method: GET, path: /order } }
  bank.mail: { upstream: bank, request: { method: POST, path: /mail, body: "\${args}" } }
${testerYaml('[{ allow: bank.mail }, { allow: bank.*, approve: never }]')}`,
});
beforeEach(async () => {
  await gateway.restart();
  shouldCutPosts = false;
  received = [];
});

const restartWithAccount = async (account: string) => {
  await gateway.kill();
  received = [];
  shouldCutPosts = false;
  await gateway.start({ ACCOUNT: account });
};
const NO_WAIT = { headers: { prefer: 'wait=0' } };
const isFinal = ({ state }: { state: string }) => state === 'succeeded' || state === 'failed';

describe('a call whose account, a variable of the upstream URL, changed', () => {
  it.each(['bank.pay', 'bank.order'])(
    'to %s that was sent is neither re-sent nor probed at the new account',
    async (tool) => {
      shouldCutPosts = true;
      const { txn } = (await gateway.call(tool, {}, { key: tool, ...NO_WAIT })).body;
      await expect.poll(() => received.filter((line) => line.includes(`/accounts/${OURS}/`)).length).toBeGreaterThan(0);
      await restartWithAccount(THEIRS);
      // The restarted gateway takes the call over and releases it.
      const readCall = async () => JSON.stringify((await gateway.admin('GET', `/admin/calls/${txn}`)).body);
      await expect.poll(readCall, { timeout: 20_000 }).toMatch(/the address of bank changed/);
      expect(received).toEqual([]);
      expect(isFinal((await gateway.get(`/v1/calls/${txn}`)).body)).toBe(false);
      await restartWithAccount(OURS);
      expect((await gateway.waitForCall(txn, isFinal)).state).toBe('succeeded');
      expect(received[0]).toContain(`/accounts/${OURS}/`);
    },
  );

  it('that was held is denied, and no answer or row shows either account', async () => {
    const { txn } = (await gateway.call('bank.mail', {}, { key: 'mail', ...NO_WAIT })).body;
    const { digest } = (await gateway.admin('GET', `/admin/approvals/${txn}`)).body;
    await restartWithAccount(THEIRS);
    await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { reason: 'ok', digest });
    await gateway.waitForCall(txn, isFinal);
    const { body } = await gateway.admin('GET', `/admin/calls/${txn}`);
    expect(body).toMatchObject({ state: 'failed', problem: { code: 'denied' } });
    expect(received).toEqual([]);
    expect(JSON.stringify([body, await dumpCallRows(database)])).not.toMatch(`${OURS}|${THEIRS}`);
  });
});
