import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { prepareFrameworks } from '../clients/install.ts';
import { AGENT_KEY, testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { CountingMcpServer } from './counting-mcp-server.ts';
import { ANSWER_FAULTS, FaultProxy } from './fault-proxy.ts';
import { FrameworkProcess, MCP_FRAMEWORKS } from './mcp-frameworks.ts';

beforeAll(prepareFrameworks, 600_000);
const server = useResource(CountingMcpServer.start, (started) => started.stop());
/** Between the gateway and the server. */
const serverProxy = useFaultProxy(() => server.port);
const { gateway } = useGateway({
  upstream: 'none',
  policies: () => `
upstreams:
  bank: { adapter: mcp, url: "http://127.0.0.1:${serverProxy.port}/mcp", import: "*", allowPrivate: true, breaker: { minimum: 1000 } }
${testerYaml('[{ allow: "bank.*", approve: never }]')}`,
});
/** Between the framework and the gateway. */
const clientProxy = useFaultProxy(() => gateway.port);

function useFaultProxy(target: () => number): FaultProxy {
  return useResource(
    () => FaultProxy.start(target),
    (proxy) => proxy.stop(),
  );
}

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
