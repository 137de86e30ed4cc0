import { type GatewaySetup, useDatabase, useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { startTcpProxy } from './tcp-proxy.ts';

/** A gateway whose connections to PostgreSQL go through a proxy, `link`, that can stall, cut or refuse them. */
export function useLinkedGateway(setup: GatewaySetup = {}) {
  const database = useDatabase();
  const link = useResource(
    () => startTcpProxy({ targetPort: Number(new URL(database.url).port) }),
    (proxy) => proxy.close(),
  );
  const databaseUrl = () => {
    const url = new URL(database.url);
    url.port = String(link.port);
    return url.href;
  };
  return { link, ...useGateway({ ...setup, database, databaseUrl }) };
}
