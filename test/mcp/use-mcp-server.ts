import { useResource } from '../support/use-resource.ts';
import { type ProtocolEra, startTestMcpServer, type TestMcpServer } from './server.ts';

/** An MCP server over HTTP for the tests of a file. */
export function useMcpServer(options: { era?: ProtocolEra; label?: string } = {}): TestMcpServer {
  return useResource(
    () => startTestMcpServer(options),
    (server) => server.stop(),
  );
}
