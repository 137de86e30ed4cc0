import { join } from 'node:path';
import { buildFaultPolicies } from '../test/support/fault-policies.ts';
import { AGENT_KEY, findFreePort, makeGateway } from '../test/support/gateway.ts';
import type { BenchDatabaseServer } from './database.ts';
import { startDbos, startRestate, startRestateService } from './peers.ts';
import type { ServerProcess } from './processes.ts';

/** What the upstream offers: nothing, an idempotency key, or a read that shows earlier effects. */
export type UpstreamSupport = 'none' | 'key' | 'probe';

/** A system that promises one effect per call, in front of an upstream that counts effects. */
export interface ComparedSystem {
  readonly name: string;
  readonly support: UpstreamSupport;
  /** Starts the process that makes the call; also restarts it after a kill. */
  start(): Promise<RunningProcess>;
  readonly request: { readonly url: string; readonly headers: Readonly<Record<string, string>> };
}

export interface RunningProcess {
  readonly pid: number;
  /** Resolves when the process has ended, for any reason. */
  waitForExit(): Promise<unknown>;
}

export interface EffectsBenchSetup {
  readonly database: BenchDatabaseServer;
  readonly home: string;
  readonly cleanups: (() => Promise<unknown>)[];
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
  support: UpstreamSupport,
  upstream: string,
  { database, cleanups }: EffectsBenchSetup,
): Promise<ComparedSystem> {
  const gateway = await makeGateway({
    policies: buildFaultPolicies(upstream),
    databaseUrl: await database.createDatabase(`oncegate_${support}`),
    env: { ONCEGATE_DEMO: '0' },
  });
  cleanups.push(() => gateway.dispose());
  return {
    name: 'Oncegate',
    support,
    start: async () => {
      await gateway.start();
      return { pid: gateway.pid, waitForExit: () => gateway.waitForExit() };
    },
    request: {
      url: `${gateway.url}/v1/tools/${TOOL_BY_SUPPORT[support]}`,
      headers: { authorization: `Bearer ${AGENT_KEY}`, prefer: 'wait=20' },
    },
  };
}

/** The killed process is the Restate service, which makes the call. The Restate server, which stores the state, stays. */
export async function prepareRestate(
  support: UpstreamSupport,
  upstream: string,
  { home, cleanups }: EffectsBenchSetup,
): Promise<ComparedSystem> {
  const port = await findFreePort();
  const start = makeRestartable(
    () => startRestateService(upstream + ROUTE_BY_SUPPORT[support], { PORT: String(port) }),
    cleanups,
  );
  const registered = await start();
  const server = await startRestate(join(home, `restate-${support}`), `http://127.0.0.1:${port}`);
  cleanups.push(() => server.kill('SIGKILL'));
  await registered.kill();
  return { name: 'Restate', support, start, request: { url: `${server.url}/bench/charge`, headers: {} } };
}

export async function prepareDbos(
  support: UpstreamSupport,
  upstream: string,
  setup: EffectsBenchSetup,
  hasRetries: boolean,
): Promise<ComparedSystem> {
  const port = await findFreePort();
  const url = await setup.database.createDatabase(`dbos_${support}_${hasRetries ? 'retries' : 'default'}`);
  const env = { PORT: String(port), RETRY_STEPS: hasRetries ? '1' : '0' };
  return {
    name: hasRetries ? 'DBOS, step with retries' : 'DBOS',
    support,
    start: makeRestartable(() => startDbos(upstream + ROUTE_BY_SUPPORT[support], url, env), setup.cleanups),
    request: { url: `http://127.0.0.1:${port}/charge`, headers: {} },
  };
}

/** Starts one process after the other; the clean-up kills the last one. */
function makeRestartable(
  start: () => Promise<ServerProcess>,
  cleanups: EffectsBenchSetup['cleanups'],
): () => Promise<ServerProcess> {
  let last: ServerProcess | undefined;
  cleanups.push(async () => last?.kill('SIGKILL'));
  return async () => {
    last = await start();
    return last;
  };
}
