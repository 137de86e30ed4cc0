import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type { BenchDatabaseServer } from './database.ts';
import { type RequestSpec, type Sample, sendLoad } from './load.ts';
import { buildMcpCall, startMcpProxy, startMcpServer } from './mcp.ts';
import { BENCH_AGENT_KEY, buildHttpCall, MANY_RULES_AGENT_KEY, makeBenchGateway, openSagas } from './oncegate.ts';
import { startDbos, startRestate, startRestateService } from './peers.ts';
import { startServerProcess } from './processes.ts';
import { prepareTwoCommits } from './two-commits.ts';

/** Something that is measured. */
export interface MeasuredSystem {
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

interface SystemsBenchSetup {
  /** Where the service behind is. */
  readonly upstream: string;
  readonly database: BenchDatabaseServer;
  readonly home: string;
  /** Takes down, in reverse order, what was put up. */
  readonly closing: (() => Promise<unknown>)[];
}

type RequestSpecFactory = (run: string) => (i: number) => RequestSpec;

const BASELINE_NAME = 'proxy without ledger';

const NOTE = 'y'.repeat(900);
const BODY = JSON.stringify({ order: 'o-1', amount: 1200, note: NOTE });
const REPLAYED_CALLS = 500;

export async function startOwnSystems({ upstream, database, closing }: SystemsBenchSetup): Promise<MeasuredSystem[]> {
  const proxy = await startServerProcess('plain-proxy.mjs', { UPSTREAM: upstream });
  closing.push(() => proxy.kill());
  const mcp = await startMcpServer();
  closing.push(() => mcp.kill());
  const gateway = await makeBenchGateway(upstream, `${mcp.url}/mcp`, await database.make('oncegate_bench'));
  closing.push(() => gateway.dispose());
  await gateway.start();
  const plain = buildHttpCall(BENCH_AGENT_KEY, BODY);
  const fromAgent = (name: string, shotOf: (total: number) => Promise<RequestSpecFactory>): MeasuredSystem => ({
    name,
    first: async (run, total, atOnce) => sendLoad(gateway.url, total, atOnce, (await shotOf(total))(run)),
    pids: [],
    isSlow: false,
  });
  return [
    { ...fromAgent(BASELINE_NAME, async () => plain), first: buildFirstRunner(proxy.url, plain), pids: [proxy.pid] },
    { ...fromAgent('Oncegate', async () => plain), replay: buildReplayRunner(gateway.url, plain), pids: [gateway.pid] },
    fromAgent('Oncegate, 200 rules', async () => buildHttpCall(MANY_RULES_AGENT_KEY, BODY)),
    fromAgent('Oncegate, step of a saga', async (total) => {
      const sagas = await openSagas(gateway, Math.ceil(total / 10));
      return buildHttpCall(BENCH_AGENT_KEY, BODY, (i) => sagas[i % sagas.length] ?? '');
    }),
    {
      ...fromAgent('MCP server alone', async () => plain),
      first: buildFirstRunner(mcp.url, buildMcpCall('/mcp', 'charge', NOTE)),
    },
    fromAgent('Oncegate, MCP', async () => buildMcpCall('/mcp', 'bank__charge', NOTE)),
  ];
}

export async function startPeerSystems({
  upstream,
  database,
  home,
  closing,
}: SystemsBenchSetup): Promise<MeasuredSystem[]> {
  const charges = `${upstream}/charges`;
  const shotOf =
    (path: string): RequestSpecFactory =>
    (run) =>
    (i) => ({ path, headers: { 'idempotency-key': `${run}-${i}` }, body: BODY });
  const systems: MeasuredSystem[] = [];
  for (const partitions of [undefined, 2]) {
    const service = await startRestateService(charges);
    closing.push(() => service.kill());
    const server = await startRestate(join(home, `restate-${partitions ?? 'default'}`), service.url, partitions);
    closing.push(() => server.kill('SIGKILL'));
    systems.push({
      name: partitions === undefined ? 'Restate' : `Restate, ${partitions} partitions`,
      first: buildFirstRunner(server.url, shotOf('/bench/charge')),
      replay: buildReplayRunner(server.url, shotOf('/bench/charge')),
      pids: [server.pid, service.pid],
      isSlow: true,
    });
  }
  const dbos = await startDbos(charges, await database.make('dbos_bench'));
  closing.push(() => dbos.kill('SIGKILL'));
  systems.push({
    name: 'DBOS',
    first: buildFirstRunner(dbos.url, shotOf('/charge')),
    replay: buildReplayRunner(dbos.url, shotOf('/charge')),
    pids: [dbos.pid],
    isSlow: true,
  });
  const mcpProxy = await startMcpProxy();
  closing.push(() => mcpProxy.kill());
  const first = buildFirstRunner(mcpProxy.url, buildMcpCall('/mcp', 'charge', NOTE));
  systems.push({ name: 'mcp-proxy', first, pids: [], isSlow: true });
  const bare = await prepareTwoCommits(await database.make('two_commits'), home);
  systems.push({ name: bare.name, first: (_run, total, atOnce) => bare.run(total, atOnce), pids: [], isSlow: false });
  return systems;
}

const buildFirstRunner = (url: string, shotOf: RequestSpecFactory) => (run: string, total: number, atOnce: number) =>
  sendLoad(url, total, atOnce, shotOf(run));

/** A retry follows its call within seconds, so the calls that are repeated are made right before, and not timed. */
const buildReplayRunner = (url: string, shotOf: RequestSpecFactory) => async (total: number, atOnce: number) => {
  const shot = shotOf(randomUUID());
  await sendLoad(url, REPLAYED_CALLS, 16, shot);
  return sendLoad(url, total, atOnce, (i) => shot(i % REPLAYED_CALLS));
};
