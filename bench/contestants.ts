import { join } from 'node:path';
import { buildFaultPolicies } from '../test/support/fault-policies.ts';
import { AGENT_KEY, findFreePort, makeGateway } from '../test/support/gateway.ts';
import type { BenchDatabaseServer } from './database.ts';
import { startDbos, startRestate, startRestateService } from './peers.ts';
import type { ServerProcess } from './processes.ts';

/** How the service behind helps: not at all, by honouring an idempotency key, or by telling what it has done. */
export type UpstreamSupport = 'none' | 'key' | 'probe';

/** One of those that promise to do a thing once, before a service that counts how often it was done. */
export interface ComparedSystem {
  readonly name: string;
  readonly help: UpstreamSupport;
  /** Starts the process that makes the call, again after it was killed. */
  start(): Promise<RunningProcess>;
  readonly request: { readonly url: string; readonly headers: Readonly<Record<string, string>> };
}

export interface RunningProcess {
  readonly pid: number;
  /** Resolves when the process has ended, however. */
  gone(): Promise<unknown>;
}

export interface EffectsBenchSetup {
  readonly database: BenchDatabaseServer;
  readonly home: string;
  readonly closing: (() => Promise<unknown>)[];
}

const ROUTE_BY_SUPPORT: Readonly<Record<UpstreamSupport, string>> = {
  none: '/none/mail',
  key: '/keyed/charge',
  probe: '/probed/orders',
};
const TOOL_BY_SUPPORT: Readonly<Record<UpstreamSupport, string>> = {
  none: 'world.none',
  key: 'world.keyed',
  probe: 'world.probed',
};

export async function prepareOncegate(
  help: UpstreamSupport,
  upstream: string,
  { database, closing }: EffectsBenchSetup,
): Promise<ComparedSystem> {
  const gateway = await makeGateway({
    policies: buildFaultPolicies(upstream),
    databaseUrl: await database.make(`oncegate_${help}`),
    env: { ONCEGATE_DEMO: '0' },
  });
  closing.push(() => gateway.dispose());
  return {
    name: 'Oncegate',
    help,
    start: async () => {
      await gateway.start();
      return { pid: gateway.pid, gone: () => gateway.waitForExit() };
    },
    request: {
      url: `${gateway.url}/v1/tools/${TOOL_BY_SUPPORT[help]}`,
      headers: { authorization: `Bearer ${AGENT_KEY}`, prefer: 'wait=20' },
    },
  };
}

/** The process that makes the call is the service; the server, which remembers, lives on. */
export async function prepareRestate(
  help: UpstreamSupport,
  upstream: string,
  { home, closing }: EffectsBenchSetup,
): Promise<ComparedSystem> {
  const port = await findFreePort();
  const start = makeRestartable(
    () => startRestateService(upstream + ROUTE_BY_SUPPORT[help], { PORT: String(port) }),
    closing,
  );
  const introduced = await start();
  const server = await startRestate(join(home, `restate-${help}`), `http://127.0.0.1:${port}`);
  closing.push(() => server.kill('SIGKILL'));
  await introduced.kill();
  return { name: 'Restate', help, start, request: { url: `${server.url}/bench/charge`, headers: {} } };
}

export async function prepareDbos(
  help: UpstreamSupport,
  upstream: string,
  place: EffectsBenchSetup,
  retries: boolean,
): Promise<ComparedSystem> {
  const port = await findFreePort();
  const url = await place.database.make(`dbos_${help}_${retries ? 'retries' : 'default'}`);
  const env = { PORT: String(port), RETRY_STEPS: retries ? '1' : '0' };
  return {
    name: retries ? 'DBOS, step with retries' : 'DBOS',
    help,
    start: makeRestartable(() => startDbos(upstream + ROUTE_BY_SUPPORT[help], url, env), place.closing),
    request: { url: `http://127.0.0.1:${port}/charge`, headers: {} },
  };
}

/** One process after the other, of which the last is ended with the rest. */
function makeRestartable(
  start: () => Promise<ServerProcess>,
  closing: EffectsBenchSetup['closing'],
): () => Promise<ServerProcess> {
  let last: ServerProcess | undefined;
  closing.push(async () => last?.kill('SIGKILL'));
  return async () => {
    last = await start();
    return last;
  };
}
