import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type { Database } from './database.ts';
import { fire, type Sample, type Shot } from './load.ts';
import { startMcpProxy, startMcpServer, toolCallOf } from './mcp.ts';
import { callOf, KEY, makeOncegate, openSagas, RULED_KEY } from './oncegate.ts';
import { startDbos, startRestate, startRestateService } from './peers.ts';
import { listening } from './processes.ts';
import { twoCommits } from './two-commits.ts';

/** Something that is measured. */
export interface System {
  readonly name: string;
  /** A first call each, under keys that begin with the run's name. */
  first(run: string, total: number, atOnce: number): Promise<Sample>;
  /** Calls that were answered before. */
  replay?(total: number, atOnce: number): Promise<Sample>;
  /** The processes whose memory is told, without PostgreSQL; none if they are told elsewhere. */
  readonly pids: readonly number[];
  /** It is given a third of the calls, or one would wait for it all day: it is the rates that are compared. */
  readonly isSlow: boolean;
}

interface Place {
  /** Where the service behind is. */
  readonly upstream: string;
  readonly database: Database;
  readonly home: string;
  /** Takes down, in reverse order, what was put up. */
  readonly closing: (() => Promise<unknown>)[];
}

type ShotOf = (run: string) => (i: number) => Shot;

const BASE = 'proxy without ledger';

const NOTE = 'y'.repeat(900);
const BODY = JSON.stringify({ order: 'o-1', amount: 1200, note: NOTE });
const REPLAYED = 500;

export async function startOwn({ upstream, database, closing }: Place): Promise<System[]> {
  const proxy = await listening('plain-proxy.mjs', { UPSTREAM: upstream });
  closing.push(() => proxy.kill());
  const mcp = await startMcpServer();
  closing.push(() => mcp.kill());
  const gateway = await makeOncegate(upstream, `${mcp.url}/mcp`, await database.make('oncegate_bench'));
  closing.push(() => gateway.dispose());
  await gateway.start();
  const plain = callOf(KEY, BODY);
  const fromAgent = (name: string, shotOf: (total: number) => Promise<ShotOf>): System => ({
    name,
    first: async (run, total, atOnce) => fire(gateway.url, total, atOnce, (await shotOf(total))(run)),
    pids: [],
    isSlow: false,
  });
  return [
    { ...fromAgent(BASE, async () => plain), first: firstOf(proxy.url, plain), pids: [proxy.pid] },
    { ...fromAgent('Oncegate', async () => plain), replay: replayOf(gateway.url, plain), pids: [gateway.pid] },
    fromAgent('Oncegate, 200 rules', async () => callOf(RULED_KEY, BODY)),
    fromAgent('Oncegate, step of a saga', async (total) => {
      const sagas = await openSagas(gateway, Math.ceil(total / 10));
      return callOf(KEY, BODY, (i) => sagas[i % sagas.length] ?? '');
    }),
    {
      ...fromAgent('MCP server alone', async () => plain),
      first: firstOf(mcp.url, toolCallOf('/mcp', 'charge', NOTE)),
    },
    fromAgent('Oncegate, MCP', async () => toolCallOf('/mcp', 'bank__charge', NOTE)),
  ];
}

export async function startPeers({ upstream, database, home, closing }: Place): Promise<System[]> {
  const charges = `${upstream}/charges`;
  const shotOf =
    (path: string): ShotOf =>
    (run) =>
    (i) => ({ path, headers: { 'idempotency-key': `${run}-${i}` }, body: BODY });
  const systems: System[] = [];
  for (const partitions of [undefined, 2]) {
    const service = await startRestateService(charges);
    closing.push(() => service.kill());
    const server = await startRestate(join(home, `restate-${partitions ?? 'default'}`), service.url, partitions);
    closing.push(() => server.kill('SIGKILL'));
    systems.push({
      name: partitions === undefined ? 'Restate' : `Restate, ${partitions} partitions`,
      first: firstOf(server.url, shotOf('/bench/charge')),
      replay: replayOf(server.url, shotOf('/bench/charge')),
      pids: [server.pid, service.pid],
      isSlow: true,
    });
  }
  const dbos = await startDbos(charges, await database.make('dbos_bench'));
  closing.push(() => dbos.kill('SIGKILL'));
  systems.push({
    name: 'DBOS',
    first: firstOf(dbos.url, shotOf('/charge')),
    replay: replayOf(dbos.url, shotOf('/charge')),
    pids: [dbos.pid],
    isSlow: true,
  });
  const mcpProxy = await startMcpProxy();
  closing.push(() => mcpProxy.kill());
  const first = firstOf(mcpProxy.url, toolCallOf('/mcp', 'charge', NOTE));
  systems.push({ name: 'mcp-proxy', first, pids: [], isSlow: true });
  const bare = await twoCommits(await database.make('two_commits'), home);
  systems.push({ name: bare.name, first: (_run, total, atOnce) => bare.run(total, atOnce), pids: [], isSlow: false });
  return systems;
}

const firstOf = (url: string, shotOf: ShotOf) => (run: string, total: number, atOnce: number) =>
  fire(url, total, atOnce, shotOf(run));

/** A retry follows its call within seconds, so the calls that are repeated are made right before, and not timed. */
const replayOf = (url: string, shotOf: ShotOf) => async (total: number, atOnce: number) => {
  const shot = shotOf(randomUUID());
  await fire(url, REPLAYED, 16, shot);
  return fire(url, total, atOnce, (i) => shot(i % REPLAYED));
};
