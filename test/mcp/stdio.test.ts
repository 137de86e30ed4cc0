import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { dumpCallRows } from '../support/call-rows.ts';
import { testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { requestLegacy, waitForImport } from './clients.ts';
import { createStdioServer, type McpFaultStep } from './server.ts';

const SECRET = 'local-secret-token';
const TOKEN = 'token-in-the-command';

const world = useResource(createStdioServer, (server) => server.remove());
const RETRY = 'retry: { attempts: 20, base: 100ms, max: 500ms, within: 1m }';
const { gateway, database } = useGateway({
  upstream: 'none',
  env: { WORLD_KEY: SECRET, WORLD_TOKEN: TOKEN, UNRELATED_SECRET: 'of-the-gateway' },
  policies: () => `
upstreams:
  local: { adapter: mcp, command: ${JSON.stringify([...world.command, '--label', `\${env.WORLD_TOKEN}`])}, env: { WORLD_KEY: "\${env.WORLD_KEY}" }, timeout: 2s, import: "*", breaker: { minimum: 1000 } }
  absent: { adapter: mcp, command: [/no/such/program], timeout: 1s }
tools:
  local.pay: { upstream: local, once: { by: key, field: key }, input: { type: object }, ${RETRY} }
  local.put: { upstream: local, once: { by: idempotent }, ${RETRY} }
  local.mail: { upstream: local, ${RETRY} }
  local.tell: { upstream: local, effect: read }
  absent.mail: { upstream: absent, retry: { attempts: 1 } }
${testerYaml('[{ allow: "*", approve: never }]')}`,
});
beforeAll(async () => {
  await waitForImport(gateway, 'local.find');
  await world.waitUntilRunning();
});
// A clean stop also ends the server that the gateway started.
afterAll(() => gateway.stop());
beforeEach(async () => {
  await world.waitUntilRunning();
  await world.reset();
});

const call = (tool: string, id: string, key?: string) =>
  gateway.call(`local.${tool}`, { id }, key === undefined ? {} : { key });
const plan = (tool: string, id: string, steps: McpFaultStep[]) => world.plan({ match: { tool, id }, do: steps });
const effects = async (id: string) => (await world.effects()).filter((effect) => effect.id === id);

describe('an MCP server over stdio', () => {
  it('is started, and executes calls', async () => {
    expect((await call('mail', 'one')).body).toMatchObject({ state: 'succeeded' });
    const many = await Promise.all(Array.from({ length: 20 }, (_, i) => call('put', `many ${i}`)));
    many.forEach(({ body }, i) => {
      expect(body.result.structuredContent.id).toBe(`many ${i}`);
    });
  });

  it('gets only the environment variables that its policy names', async () => {
    const { body } = await call('tell', 'env');
    const { env } = JSON.parse(body.result.content[0].text);
    expect(env.WORLD_KEY).toBe('[redacted]');
    expect(JSON.stringify(env)).not.toMatch(/of-the-gateway|DATABASE_URL|ONCEGATE/);
  });

  it('gets environment values in its command, and they are redacted everywhere else', async () => {
    const { body } = await call('tell', 'argv');
    expect(JSON.parse(body.result.content[0].text).argv.slice(-2)).toEqual(['--label', '[redacted]']);
    const rows = await dumpCallRows(database);
    expect(rows).toContain('[redacted]');
    expect(rows).not.toContain(TOKEN);
  });

  it.each([
    ['it is killed after the effect', ['apply', 'exit']],
    ['it sends an invalid message and dies', ['apply', { raw: 'this is no {JSON' }, 'exit']],
    ['it never answers', ['apply', 'hang']],
    ['its answer is too large', ['apply', { big: 2_000_000 }]],
  ] as [string, McpFaultStep[]][])('is called again only if a repeat is harmless, when %s', async (how, steps) => {
    const isKilled = steps.includes('exit');
    for (const tool of ['pay', 'mail']) {
      const before = await world.waitUntilRunning();
      await plan(tool, `${tool} ${how}`, steps);
      const { body } = await call(tool, `${tool} ${how}`);
      if (tool === 'mail') expect(body).toMatchObject({ code: 'in_doubt' });
      else await gateway.waitForCall(body.txn, ({ state }) => state === 'succeeded');
      expect(await effects(`${tool} ${how}`)).toHaveLength(1);
      if (isKilled) await world.waitUntilRunning(before);
    }
  });

  it('that is killed before the effect is called again for an idempotent tool', async () => {
    await plan('put', 'early', ['exit']);
    const { body } = await call('put', 'early');
    await gateway.waitForCall(body.txn, ({ state }) => state === 'succeeded');
    expect(await effects('early')).toHaveLength(1);
  });

  it('that is killed while idle is restarted, and no call is in doubt', async () => {
    const pid = await world.waitUntilRunning();
    process.kill(pid, 'SIGKILL');
    await world.waitUntilRunning(pid);
    expect((await call('mail', 'again')).body).toMatchObject({ state: 'succeeded' });
    expect(await effects('again')).toHaveLength(1);
  });

  it('that sends unexpected, endless or deeply nested messages does not harm the gateway', async () => {
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    const say = (raw: string, times = 1) => world.notify({ raw, times });
    await say('not json at all');
    await say('{"jsonrpc":"2.0","id":"nobody","result":{}}');
    await say('[]');
    await say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x","deep":${deep}}}`);
    await say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":${deep}}}`);
    await say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"deep":${deep}}}`);
    await say(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"deep":${deep}}}`);
    await say('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}', 5_000);
    expect((await call('mail', 'calm')).body).toMatchObject({ state: 'succeeded' });
    const lists = (await world.requests()).filter(({ method }) => method === 'tools/list').length;
    expect(lists).toBeLessThan(50);
    expect(gateway.isAlive).toBe(true);
  });

  it('that sends a deeply nested message during a call does not harm the gateway', async () => {
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    await plan('mail', 'nested', [
      { raw: `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":${deep}}}` },
    ]);
    const params = { name: 'local__mail', arguments: { id: 'nested' } };
    expect((await requestLegacy(gateway, 'tools/call', params)).answer.result.isError).toBeUndefined();
    expect(gateway.isAlive).toBe(true);
  });

  it('that sends invalid message ids does not crash the gateway', async () => {
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    for (const name of ['{"toString":1}', '{"toString":1,"valueOf":1}', deep, JSON.stringify('x'.repeat(5_000))]) {
      await world.notify({ raw: `{"jsonrpc":"2.0","id":${name},"result":{}}` });
      await world.notify({ raw: `{"jsonrpc":"2.0","id":${name},"method":"ping"}` });
      await world.notify({
        raw: `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":${name}}}`,
      });
    }
    expect((await call('mail', 'named')).body).toMatchObject({ state: 'succeeded' });
    expect(gateway.isAlive).toBe(true);
  });

  it('whose progress cannot be serialized does not crash the gateway', async () => {
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    await plan('mail', 'progress', [{ event: 'call-started' }, { wait: 'notified' }]);
    const params = { name: 'local__mail', arguments: { id: 'progress' }, _meta: { progressToken: 'mine' } };
    const pending = requestLegacy(gateway, 'tools/call', params);
    await world.awaitEvent('call-started');
    const request = (await world.requests()).find(({ id }) => id === 'progress');
    const token = JSON.stringify(request?.rpcId);
    await world.notify({
      raw: `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":${token},"progress":1,"x":${deep}}}`,
    });
    await world.release('notified');
    expect((await pending).answer.result.isError).toBeUndefined();
    expect(gateway.isAlive).toBe(true);
  });

  it('that cannot be started gets no call', async () => {
    expect((await gateway.call('absent.mail', {})).body).toMatchObject({ status: 503, code: 'unavailable' });
  });
});

describe('a gateway that is killed', () => {
  it('between the effect and its record leaves the call in doubt or done, and never sends it twice', async () => {
    for (const tool of ['pay', 'mail']) {
      const pid = await world.waitUntilRunning();
      await plan(tool, `crash ${tool}`, ['apply', { kill: gateway.pid }, 'hang']);
      const pending = call(tool, `crash ${tool}`, `crash-${tool}`).catch(() => undefined);
      await gateway.waitForExit();
      await pending;
      await gateway.start();
      const repeatCall = async () => (await call(tool, `crash ${tool}`, `crash-${tool}`)).body;
      if (tool === 'pay')
        await expect.poll(async () => (await repeatCall()).state, { timeout: 15_000 }).toBe('succeeded');
      else expect(await repeatCall()).toMatchObject({ code: 'in_doubt' });
      expect(await effects(`crash ${tool}`)).toHaveLength(1);
      await world.waitUntilRunning(pid);
    }
  });

  it('leaves no server behind', async () => {
    await world.waitUntilRunning();
    await gateway.kill();
    await expect.poll(() => world.pid().catch(() => 'gone')).toBe('gone');
  });
});
