import { beforeEach, describe, expect, it } from 'vitest';
import { testerYaml } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway } from '../support/use-gateway.ts';

const OURS = 'account-ours-55aa';
const THEIRS = 'account-theirs-77bb';

let cuts = false;
let asked: string[] = [];

/** A service of many accounts: it cuts the connection of every write while it is told to, and finds whatever it is asked for. */
const service = useHttpServer((request, response) => {
  asked.push(`${request.method} ${request.url}`);
  if (cuts && request.method === 'POST') return void request.socket.destroy();
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
  cuts = false;
  asked = [];
});

const restartedFor = async (account: string) => {
  await gateway.kill();
  asked = [];
  cuts = false;
  await gateway.start({ ACCOUNT: account });
};
const quickly = { headers: { prefer: 'wait=0' } };
const isFinal = ({ state }: { state: string }) => state === 'succeeded' || state === 'failed';

describe('a call whose account changed, where that is a variable of the path', () => {
  it.each(['bank.pay', 'bank.order'])(
    'after %s was sent is neither sent to another nor looked for there',
    async (tool) => {
      cuts = true;
      const { txn } = (await gateway.call(tool, {}, { key: tool, ...quickly })).body;
      await expect.poll(() => asked.filter((line) => line.includes(`/accounts/${OURS}/`)).length).toBeGreaterThan(0);
      await restartedFor(THEIRS);
      // It was taken up there, and given back.
      const told = async () => JSON.stringify((await gateway.admin('GET', `/admin/calls/${txn}`)).body);
      await expect.poll(told, { timeout: 20_000 }).toContain('the URL of bank changed');
      expect(asked).toEqual([]);
      expect(isFinal((await gateway.get(`/v1/calls/${txn}`)).body)).toBe(false);
      await restartedFor(OURS);
      expect((await gateway.waitForCall(txn, isFinal)).state).toBe('succeeded');
      expect(asked[0]).toContain(`/accounts/${OURS}/`);
    },
  );

  it('between hold and run is denied, and the account is told to nobody', async () => {
    const { txn } = (await gateway.call('bank.mail', {}, { key: 'mail', ...quickly })).body;
    const { digest } = (await gateway.admin('GET', `/admin/approvals/${txn}`)).body;
    await restartedFor(THEIRS);
    await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { reason: 'ok', digest });
    await gateway.waitForCall(txn, isFinal);
    const { body } = await gateway.admin('GET', `/admin/calls/${txn}`);
    expect(body).toMatchObject({ state: 'failed', problem: { code: 'denied' } });
    expect(asked).toEqual([]);
    const rows = await database.query<{ row: string }>('select c::text as row from calls c');
    expect(JSON.stringify([body, rows])).not.toMatch(`${OURS}|${THEIRS}`);
  });
});
