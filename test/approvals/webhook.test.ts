import { createHmac } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { beforeEach, describe, expect, it } from 'vitest';
import { readConfig } from '../../gateway/config.ts';
import { decideApproval } from '../support/approvals.ts';
import { AGENT_KEY, keysYaml, PEOPLE_YAML } from '../support/gateway.ts';
import { readBody, useHttpServer } from '../support/http-server.ts';
import { uniqueId } from '../support/unique-id.ts';
import { makeReplicaForTest, startGatewayForTest, useGateway } from '../support/use-gateway.ts';

const SECRET = 'a-webhook-secret-of-some-length';
const CARD = '4242-canary-4242';

interface Delivery {
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into it
  readonly body: any;
}

const received: Delivery[] = [];
/** The status that the receiver answers with; after `silence` it never answers. */
let answer: number | 'silence' = 204;
let id = '';

const receiver = useHttpServer(async (request, response) => {
  const text = await readBody(request);
  received.push({ headers: request.headers, text, body: JSON.parse(text) });
  if (answer === 'silence') return;
  response.writeHead(answer, answer === 302 ? { location: '/elsewhere' } : {}).end();
});
const { upstream, database, gateway } = useGateway({
  env: { HOOK_SECRET: SECRET },
  config: () =>
    `approvals: { webhook: { url: "${receiver.url}/hook?x=1", secret: "\${env.HOOK_SECRET}", allowPrivate: true } }\n`,
  policies,
});
beforeEach(() => {
  id = uniqueId('case');
  answer = 204;
});

function policies(url: string): string {
  return `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.mail:
    upstream: world
    input: { type: object, properties: { id: { type: string }, card: { type: string }, note: { type: string } }, required: [id] }
    request: { method: POST, path: /none/mail, body: "\${args}" }
    redact: [args.card]
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.mail
        when: args.id.startsWith("brief-")
        approve: { within: 1s }
      - allow: world.mail
${PEOPLE_YAML}`;
}

const hold = async (args: object, from = gateway) =>
  (await from.call('world.mail', args, { key: `${id}-key`, headers: { prefer: 'wait=0' } })).body.txn as string;
const findNotices = (txn: string) => received.filter(({ body }) => body.txn === txn);
const listKinds = (txn: string) => findNotices(txn).map(({ body }) => body.kind);
const decide = (txn: string, verdict: 'approve' | 'reject') => decideApproval(gateway, txn, verdict);
const readOutbox = () => database.query<{ id: string; tries: number }>('select id, tries from notices');

function isSigned({ headers, text }: Delivery): boolean {
  const [, t, v1] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(String(headers['oncegate-signature'])) ?? [];
  return (
    Math.abs(Number(t) - Date.now() / 1000) < 60 &&
    v1 === createHmac('sha256', SECRET).update(`${t}.${text}`).digest('hex')
  );
}

describe('a notice', () => {
  it('is signed and sent when a call is held and when it is decided, without redacted values', async () => {
    const txn = await hold({ id, card: CARD, note: 'nul \u0000 and "quotes"' });
    await expect.poll(() => listKinds(txn), { timeout: 10_000 }).toEqual(['approval.held']);
    const [held] = findNotices(txn) as [Delivery];
    expect(isSigned(held)).toBe(true);
    expect(held.headers['content-type']).toBe('application/json');
    expect(held.headers['oncegate-delivery']).toBe(held.body.delivery);
    expect(held.body).toMatchObject({ agent: 'tester', tool: 'world.mail', state: 'pending', quorum: 1, votes: [] });
    expect(held.body.args).toMatchObject({ id, note: 'nul \u0000 and "quotes"' });
    expect(held.text).not.toContain(CARD);
    expect(held.text).not.toContain('fingerprint');
    expect((await decide(txn, 'approve')).status).toBe(200);
    await expect.poll(() => listKinds(txn), { timeout: 10_000 }).toEqual(['approval.held', 'approval.approved']);
    expect(findNotices(txn)[1]?.body.votes).toMatchObject([
      { person: 'root', verdict: 'approve', reason: 'approve it' },
    ]);
    expect(findNotices(txn)[1]?.headers['oncegate-delivery']).not.toBe(held.headers['oncegate-delivery']);
    await expect.poll(readOutbox, { timeout: 10_000 }).toEqual([]);
  });

  it('is sent for a rejection, a cancel and an expiry', async () => {
    const rejected = await hold({ id });
    await decide(rejected, 'reject');
    await expect
      .poll(() => listKinds(rejected).sort(), { timeout: 10_000 })
      .toEqual(['approval.held', 'approval.rejected']);
    id = `${id}-b`;
    const cancelled = await hold({ id });
    await gateway.request('POST', `/v1/calls/${cancelled}/cancel`, { key: AGENT_KEY });
    await expect
      .poll(() => listKinds(cancelled).sort(), { timeout: 10_000 })
      .toEqual(['approval.cancelled', 'approval.held']);
    id = `brief-${id}`;
    const expired = await hold({ id });
    await expect
      .poll(() => listKinds(expired).sort(), { timeout: 10_000 })
      .toEqual(['approval.expired', 'approval.held']);
  });

  it.each([500, 302, 404, 'silence'] as const)(
    'is sent again after %s, with the same delivery id',
    async (badAnswer) => {
      answer = badAnswer;
      const txn = await hold({ id });
      await expect.poll(() => findNotices(txn).length, { timeout: 10_000 }).toBe(1);
      answer = 200;
      await expect.poll(() => findNotices(txn).length, { timeout: 10_000 }).toBe(2);
      const [first, second] = findNotices(txn) as [Delivery, Delivery];
      expect(second.headers['oncegate-delivery']).toBe(first.headers['oncegate-delivery']);
      expect(second.text).toBe(first.text);
      expect(isSigned(second)).toBe(true);
      await expect.poll(readOutbox, { timeout: 10_000 }).toEqual([]);
    },
  );

  it('is sent again if the gateway is killed while it delivers', async () => {
    answer = 'silence';
    const txn = await hold({ id });
    await expect.poll(() => findNotices(txn).length, { timeout: 10_000 }).toBe(1);
    await gateway.kill();
    expect((await readOutbox()).length).toBe(1);
    answer = 200;
    await gateway.start();
    await expect.poll(() => findNotices(txn).length, { timeout: 20_000 }).toBe(2);
    const [first, second] = findNotices(txn) as [Delivery, Delivery];
    expect(second.headers['oncegate-delivery']).toBe(first.headers['oncegate-delivery']);
    await expect.poll(readOutbox, { timeout: 10_000 }).toEqual([]);
  });

  it('is delivered by one replica only', async () => {
    const second = await makeReplicaForTest(gateway);
    await second.start();
    const txns: string[] = [];
    for (let i = 0; i < 20; i += 1) {
      id = `both-${i}`;
      txns.push(await hold({ id }, i % 2 === 0 ? gateway : second));
    }
    await expect.poll(readOutbox, { timeout: 10_000 }).toEqual([]);
    for (const txn of txns) expect(findNotices(txn)).toHaveLength(1);
  });
});

it('a gateway without a webhook deletes its notices', async () => {
  const { database: own, gateway: plain } = await startGatewayForTest({
    upstream,
    config: 'retention: { payloads: 4s }\n',
    policies,
  });
  await hold({ id }, plain);
  expect(await own.query('select id from notices')).toHaveLength(1);
  await own.query(`update notices set due_at = now() - interval '2 minutes'`);
  await expect.poll(() => own.query('select id from notices'), { timeout: 10_000 }).toEqual([]);
});

it('the configuration of a webhook is checked strictly', async () => {
  const { mkdtemp, rm, writeFile } = await import('node:fs/promises');
  const { join } = await import('node:path');
  const { tmpdir } = await import('node:os');
  const dir = await mkdtemp(join(tmpdir(), 'oncegate-config-'));
  const readFaults = async (yaml: string) => {
    await writeFile(join(dir, 'oncegate.yaml'), yaml);
    return readConfig({}, dir).then(
      () => '',
      (error: Error) => error.message,
    );
  };
  const buildConfig = (text: string) => `approvals: { webhook: { ${text} } }\n`;
  expect(await readFaults(buildConfig(`url: "https://h.example", secret: ${SECRET}`))).toBe('');
  expect(await readFaults(buildConfig(`url: "http://h.example", secret: ${SECRET}`))).toMatch(
    /^oncegate\.yaml:1:\d+: .*https/,
  );
  expect(await readFaults(buildConfig('url: "https://h.example", secret: short'))).toContain('at least 16 characters');
  expect(await readFaults(buildConfig('url: "https://h.example", secret: "$' + '{env.NOPE}"'))).toContain(
    'NOPE is not set',
  );
  expect(await readFaults(buildConfig('url: "https://h.example"'))).toContain('secret');
  await rm(dir, { recursive: true });
});
