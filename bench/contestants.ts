import { join } from 'node:path';
import { faultPolicies } from '../test/support/fault-policies.ts';
import { AGENT_KEY, freePort, makeGateway } from '../test/support/gateway.ts';
import type { Database } from './database.ts';
import { startDbos, startRestate, startRestateService } from './peers.ts';
import type { Listening } from './processes.ts';

/** How the service behind helps: not at all, by honouring an idempotency key, or by telling what it has done. */
export type Help = 'none' | 'key' | 'probe';

/** One of those that promise to do a thing once, before a service that counts how often it was done. */
export interface Contestant {
  readonly name: string;
  readonly help: Help;
  /** Starts the process that makes the call, again after it was killed. */
  start(): Promise<Life>;
  readonly request: { readonly url: string; readonly headers: Readonly<Record<string, string>> };
}

export interface Life {
  readonly pid: number;
  /** Resolves when the process has ended, however. */
  gone(): Promise<unknown>;
}

export interface Place {
  readonly database: Database;
  readonly home: string;
  readonly closing: (() => Promise<unknown>)[];
}

const ROUTE: Readonly<Record<Help, string>> = { none: '/none/mail', key: '/keyed/charge', probe: '/probed/orders' };
const TOOL: Readonly<Record<Help, string>> = { none: 'world.none', key: 'world.keyed', probe: 'world.probed' };

export async function oncegate(help: Help, upstream: string, { database, closing }: Place): Promise<Contestant> {
  const gateway = await makeGateway({
    policies: faultPolicies(upstream),
    databaseUrl: await database.make(`oncegate_${help}`),
    env: { ONCEGATE_DEMO: '0' },
  });
  closing.push(() => gateway.dispose());
  return {
    name: 'Oncegate',
    help,
    start: async () => {
      await gateway.start();
      return { pid: gateway.pid, gone: () => gateway.exited() };
    },
    request: {
      url: `${gateway.url}/v1/tools/${TOOL[help]}`,
      headers: { authorization: `Bearer ${AGENT_KEY}`, prefer: 'wait=20' },
    },
  };
}

/** The process that makes the call is the service; the server, which remembers, lives on. */
export async function restate(help: Help, upstream: string, { home, closing }: Place): Promise<Contestant> {
  const port = await freePort();
  const start = lives(() => startRestateService(upstream + ROUTE[help], { PORT: String(port) }), closing);
  const introduced = await start();
  const server = await startRestate(join(home, `restate-${help}`), `http://127.0.0.1:${port}`);
  closing.push(() => server.kill('SIGKILL'));
  await introduced.kill();
  return { name: 'Restate', help, start, request: { url: `${server.url}/bench/charge`, headers: {} } };
}

export async function dbos(help: Help, upstream: string, place: Place, retries: boolean): Promise<Contestant> {
  const port = await freePort();
  const url = await place.database.make(`dbos_${help}_${retries ? 'retries' : 'default'}`);
  const env = { PORT: String(port), RETRY_STEPS: retries ? '1' : '0' };
  return {
    name: retries ? 'DBOS, step with retries' : 'DBOS',
    help,
    start: lives(() => startDbos(upstream + ROUTE[help], url, env), place.closing),
    request: { url: `http://127.0.0.1:${port}/charge`, headers: {} },
  };
}

/** One process after the other, of which the last is ended with the rest. */
function lives(start: () => Promise<Listening>, closing: Place['closing']): () => Promise<Listening> {
  let last: Listening | undefined;
  closing.push(async () => last?.kill('SIGKILL'));
  return async () => {
    last = await start();
    return last;
  };
}
