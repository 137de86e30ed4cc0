import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { prepareFrameworks } from '../clients/install.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { AGENT_KEY, type Gateway, PEOPLE_YAML, sha256Hex, startGateway } from '../support/gateway.ts';
import { CountingMcpServer } from './counting-mcp-server.ts';
import { ANSWER_FAULTS, FaultProxy } from './fault-proxy.ts';
import { FrameworkProcess, MCP_FRAMEWORKS } from './mcp-frameworks.ts';

let server: CountingMcpServer;
let clientProxy: FaultProxy;
let serverProxy: FaultProxy;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(prepareFrameworks, 600_000);
beforeAll(async () => {
  server = await CountingMcpServer.start();
  serverProxy = await FaultProxy.start(() => server.port);
  database = await createTestDatabase();
  gateway = await startGateway({
    policies: {
      'matrix.yaml': `
upstreams:
  bank: { adapter: mcp, url: "http://127.0.0.1:${serverProxy.port}/mcp", import: "*", allowPrivate: true, breaker: { minimum: 1000 } }
agents:
  tester: { keys: ["sha256:${sha256Hex(AGENT_KEY)}"], rules: [{ allow: "bank.*", approve: never }] }
${PEOPLE_YAML}`,
    },
    databaseUrl: database.url,
  });
  clientProxy = await FaultProxy.start(() => gateway.port);
});
afterAll(async () => {
  await gateway?.dispose();
  await clientProxy?.stop();
  await serverProxy?.stop();
  await server?.stop();
  await database?.drop();
});

describe.each(MCP_FRAMEWORKS)('%s', (framework) => {
  let client: FrameworkProcess;
  beforeAll(() => {
    client = new FrameworkProcess(framework, AGENT_KEY);
  });
  afterAll(() => client?.stop());

  it.each(ANSWER_FAULTS)(
    'if the answer of the gateway is lost (%s), the tool is executed once, and a repeat gets its result',
    async (fault) => {
      const id = `${framework} client side ${fault}`;
      const request = { url: `http://127.0.0.1:${clientProxy.port}/mcp`, tool: 'bank__pay', args: { id } };
      const first = await client.call(request, () => clientProxy.arm(fault));
      // Some frameworks retry by themselves. For the others the test repeats the call, as an agent would.
      const last = first.content === undefined ? await client.call(request, () => {}) : first;
      expect(server.executions.get(id)).toBe(1);
      expect(last.content).toContain(`paid ${id}, time 1`);
    },
  );

  it.each(ANSWER_FAULTS)(
    'if the answer of the server is lost (%s), the tool is executed once, and the call is not reported as done',
    async (fault) => {
      const id = `${framework} server side ${fault}`;
      const request = { url: `http://127.0.0.1:${clientProxy.port}/mcp`, tool: 'bank__pay', args: { id } };
      const first = await client.call(request, () => serverProxy.arm(fault));
      await client.call(request, () => {});
      expect(server.executions.get(id)).toBe(1);
      expect(JSON.stringify(first)).not.toContain('paid');
    },
  );
});
