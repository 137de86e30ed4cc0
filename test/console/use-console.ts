import { type GatewaySetup, useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { TestBrowser } from './browser.ts';
import { buildConsolePolicies } from './console-policies.ts';

/** A gateway with the policies of the console's tests, and a browser. */
export function useConsole(setup: Pick<GatewaySetup, 'config'> = {}) {
  const { upstream, database, gateway } = useGateway({ ...setup, policies: buildConsolePolicies });
  const browser = useResource(TestBrowser.start, (started) => started.stop());
  return { upstream, database, gateway, browser };
}
