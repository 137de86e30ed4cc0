import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { prepareFrameworks } from '../clients/install.ts';
import { AGENT_KEY, testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { CountingMcpServer } from './executing-server.ts';
import { ANSWER_FAULTS, FaultProxy } from './fault-proxy.ts';
import { FrameworkProcess, MCP_FRAMEWORKS } from './mcp-frameworks.ts';

beforeAll(prepareFrameworks, 600_000);
const server = useResource(CountingMcpServer.start, (started) => started.stop());
/** Between the gateway and the server. */
const behind = useFaultProxy(() => server.port);
const { gateway } = useGateway({
  upstream: 'none',
  policies: () => `
upstreams:
  bank: { adapter: mcp, url: "http://127.0.0.1:${behind.port}/mcp", import: "*", allowPrivate: true, breaker: { minimum: 1000 } }
${testerYaml('[{ allow: "bank.*", approve: never }]')}`,
});
/** Between the framework and the gateway. */
const before = useFaultProxy(() => gateway.port);

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
    'the answer of the gateway is lost (%s): it is carried out once, and asking again tells how',
    async (fault) => {
      const id = `${framework} before ${fault}`;
      const wish = { url: `http://127.0.0.1:${before.port}/mcp`, tool: 'bank__pay', args: { id } };
      const told = await client.call(wish, () => before.arm(fault));
      // Some frameworks try again by themselves; for the others their agent does.
      const again = told.said === undefined ? await client.call(wish, () => {}) : told;
      expect(server.executions.get(id)).toBe(1);
      expect(again.said).toContain(`paid ${id}, time 1`);
    },
  );

  it.each(ANSWER_FAULTS)(
    'the answer of the server is lost (%s): it is carried out once, and never called done or failed without proof',
    async (fault) => {
      const id = `${framework} behind ${fault}`;
      const wish = { url: `http://127.0.0.1:${before.port}/mcp`, tool: 'bank__pay', args: { id } };
      const told = await client.call(wish, () => behind.arm(fault));
      await client.call(wish, () => {});
      expect(server.executions.get(id)).toBe(1);
      expect(JSON.stringify(told)).not.toContain('paid');
    },
  );
});
