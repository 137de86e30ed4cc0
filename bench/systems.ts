import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type { BenchDatabaseServer } from './database.ts';
import { type RequestSpec, type Sample, sendLoad } from './load.ts';
import { buildMcpCall, startMcpProxy, startMcpServer } from './mcp.ts';
import { BENCH_AGENT_KEY, buildHttpCall, MANY_RULES_AGENT_KEY, makeBenchGateway, openSagas } from './oncegate.ts';
import { startDbos, startRestate, startRestateService } from './peers.ts';
import { startServerProcess } from './processes.ts';
import { prepareTwoCommits } from './two-commits.ts';

/** A system whose throughput is measured. */
export interface MeasuredSystem {
  readonly name: string;
  /** Makes new calls, with keys that start with the name of the run. */
  first(run: string, total: number, atOnce: number): Promise<Sample>;
  /** Repeats calls that are already answered. */
  replay?(total: number, atOnce: number): Promise<Sample>;
  /** The processes whose memory is reported, without PostgreSQL; empty if another system reports them. */
  readonly pids: readonly number[];
  /** A slow system gets a third of the calls, to save time. Only rates are compared. */
  readonly isSlow: boolean;
}

interface SystemsBenchSetup {
  /** The URL of the upstream. */
  readonly upstream: string;
  readonly database: BenchDatabaseServer;
  readonly home: string;
  /** Run in reverse order at the end. */
  readonly cleanups: (() => Promise<unknown>)[];
}

type RequestSpecFactory = (run: string) => (i: number) => RequestSpec;

const BASELINE_NAME = 'proxy without ledger';

const NOTE = 'y'.repeat(900);
const BODY = JSON.stringify({ order: 'o-1', amount: 1200, note: NOTE });
const REPLAYED_CALLS = 500;

export async function startOwnSystems({ upstream, database, cleanups }: SystemsBenchSetup): Promise<MeasuredSystem[]> {
  const proxy = await startServerProcess('plain-proxy.mjs', { UPSTREAM: upstream });
  cleanups.push(() => proxy.kill());
  const mcp = await startMcpServer();
  cleanups.push(() => mcp.kill());
  const gateway = await makeBenchGateway(upstream, `${mcp.url}/mcp`, await database.createDatabase('oncegate_bench'));
  cleanups.push(() => gateway.dispose());
  await gateway.start();
  const plain = buildHttpCall(BENCH_AGENT_KEY, BODY);
  const fromAgent = (name: string, requestsOf: (total: number) => Promise<RequestSpecFactory>): MeasuredSystem => ({
    name,
    first: async (run, total, atOnce) => sendLoad(gateway.url, total, atOnce, (await requestsOf(total))(run)),
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
  cleanups,
}: SystemsBenchSetup): Promise<MeasuredSystem[]> {
  const charges = `${upstream}/charges`;
  const requestsOf =
    (path: string): RequestSpecFactory =>
    (run) =>
    (i) => ({ path, headers: { 'idempotency-key': `${run}-${i}` }, body: BODY });
  const systems: MeasuredSystem[] = [];
  for (const partitions of [undefined, 2]) {
    const service = await startRestateService(charges);
    cleanups.push(() => service.kill());
    const server = await startRestate(join(home, `restate-${partitions ?? 'default'}`), service.url, partitions);
    cleanups.push(() => server.kill('SIGKILL'));
    systems.push({
      name: partitions === undefined ? 'Restate' : `Restate, ${partitions} partitions`,
      first: buildFirstRunner(server.url, requestsOf('/bench/charge')),
      replay: buildReplayRunner(server.url, requestsOf('/bench/charge')),
      pids: [server.pid, service.pid],
      isSlow: true,
    });
  }
  const dbos = await startDbos(charges, await database.createDatabase('dbos_bench'));
  cleanups.push(() => dbos.kill('SIGKILL'));
  systems.push({
    name: 'DBOS',
    first: buildFirstRunner(dbos.url, requestsOf('/charge')),
    replay: buildReplayRunner(dbos.url, requestsOf('/charge')),
    pids: [dbos.pid],
    isSlow: true,
  });
  const mcpProxy = await startMcpProxy();
  cleanups.push(() => mcpProxy.kill());
  const first = buildFirstRunner(mcpProxy.url, buildMcpCall('/mcp', 'charge', NOTE));
  systems.push({ name: 'mcp-proxy', first, pids: [], isSlow: true });
  const bare = await prepareTwoCommits(await database.createDatabase('two_commits'), home);
  systems.push({ name: bare.name, first: (_run, total, atOnce) => bare.run(total, atOnce), pids: [], isSlow: false });
  return systems;
}

const buildFirstRunner =
  (url: string, requestsOf: RequestSpecFactory) => (run: string, total: number, atOnce: number) =>
    sendLoad(url, total, atOnce, requestsOf(run));

/** Retries come within seconds, so the repeated calls are made right before, without being timed. */
const buildReplayRunner = (url: string, requestsOf: RequestSpecFactory) => async (total: number, atOnce: number) => {
  const buildRequest = requestsOf(randomUUID());
  await sendLoad(url, REPLAYED_CALLS, 16, buildRequest);
  return sendLoad(url, total, atOnce, (i) => buildRequest(i % REPLAYED_CALLS));
};
