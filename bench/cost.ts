import { readdir, readFile } from 'node:fs/promises';
import pg from 'pg';
import type { BenchDatabaseServer } from './database.ts';
import { median, type Sample, sendLoad } from './load.ts';
import { startMcpServer } from './mcp.ts';
import { BENCH_AGENT_KEY, buildHttpCall, makeBenchGateway } from './oncegate.ts';
import { startServerProcess } from './processes.ts';

interface CostBenchSetup {
  readonly database: BenchDatabaseServer;
  readonly cleanups: (() => Promise<unknown>)[];
}

/** What the calls of one run cost, each. */
interface Cost {
  readonly sample: Sample;
  readonly nodeMicros: number;
  readonly postgresMicros: number;
  readonly walBytes: number;
}

const BODY = JSON.stringify({ order: 'o-1', amount: 1200, note: 'y'.repeat(900) });
/** The kernel counts processor time in hundredths of a second. */
const MICROS_PER_TICK = 10_000;
const RUNS = [
  { atOnce: 64, total: 6_000 },
  { atOnce: 16, total: 6_000 },
  { atOnce: 1, total: 1_500 },
] as const;
/** The tables of a call. Some are absent before the ledger was split. */
const CALL_TABLES = ['calls', 'open_calls', 'settlements', 'undos', 'call_events'];

/** Measures what a first call costs: processor time of the gateway and of PostgreSQL, WAL and disk. */
export async function measureCost({ database, cleanups }: CostBenchSetup, rounds: number): Promise<string> {
  const [upstream, mcp] = [await startServerProcess('upstream.mjs'), await startMcpServer()];
  cleanups.push(
    () => upstream.kill(),
    () => mcp.kill(),
  );
  const url = await database.createDatabase('cost');
  const gateway = await makeBenchGateway(upstream.url, `${mcp.url}/mcp`, url);
  cleanups.push(() => gateway.dispose());
  await gateway.start();
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  cleanups.push(() => client.end());
  const postmaster = await findPostmaster(client);
  const costs = RUNS.map((): Cost[] => []);
  for (let round = 0; round <= rounds; round += 1) {
    for (const [index, { atOnce, total }] of RUNS.entries()) {
      const readMicros = async () => ({
        node: await readProcessMicros(gateway.pid),
        postgres: await readTreeMicros(postmaster),
      });
      const [before, wal] = [await readMicros(), await readWalPosition(client)];
      const sample = await sendLoad(
        gateway.url,
        total,
        atOnce,
        buildHttpCall(BENCH_AGENT_KEY, BODY)(`r${round}-${atOnce}`),
      );
      const after = await readMicros();
      // The first round warms up both processes.
      if (round === 0) continue;
      costs[index]?.push({
        sample,
        nodeMicros: (after.node - before.node) / total,
        postgresMicros: (after.postgres - before.postgres) / total,
        walBytes: ((await readWalPosition(client)) - wal) / total,
      });
    }
  }
  return `${renderCosts(costs, rounds)}\n${await renderDisk(client)}`;
}

function renderCosts(costs: readonly (readonly Cost[])[], rounds: number): string {
  const head = `first calls, median of ${rounds}`.padEnd(28);
  const lines = [`\n${head}calls/s   p50 ms   p99 ms   Node µs   PostgreSQL µs   WAL KiB`];
  for (const [index, run] of costs.entries()) {
    const of = (pick: (cost: Cost) => number, digits: number, width: number) =>
      median(run.map(pick)).toFixed(digits).padStart(width);
    lines.push(
      `${RUNS[index]?.atOnce} in flight`.padEnd(28) +
        of(({ sample }) => sample.perSecond, 0, 7) +
        of(({ sample }) => sample.p50, 2, 9) +
        of(({ sample }) => sample.p99, 2, 9) +
        of(({ nodeMicros }) => nodeMicros, 0, 10) +
        of(({ postgresMicros }) => postgresMicros, 0, 16) +
        of(({ walBytes }) => walBytes / 1024, 2, 10),
    );
  }
  return lines.join('\n');
}

/** The size of the tables of a call with their indexes, and of the audit log, for each call. */
async function renderDisk(client: pg.Client): Promise<string> {
  const { rows } = await client.query<{ calls: string; log: string; count: string }>(
    `select (select sum(pg_total_relation_size(to_regclass(t))) from unnest($1::text[]) t) as calls,
       (select sum(pg_total_relation_size(c.oid)) from pg_class c where c.relname like 'audit\\_%' and c.relkind = 'r') as log,
       (select count(*) from calls) as count`,
    [CALL_TABLES],
  );
  const each = (bytes: string | undefined) => Math.round(Number(bytes ?? 0) / Number(rows[0]?.count ?? 1));
  return `\ndisk for each call with bodies of 1 KB: ${each(rows[0]?.calls)} B, and ${each(rows[0]?.log)} B for the audit log`;
}

async function readWalPosition(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ at: string }>(`select pg_current_wal_lsn() - '0/0' as at`);
  return Number(rows[0]?.at ?? 0);
}

/** The parent of every backend. */
async function findPostmaster(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  return (await readStat(rows[0]?.pid ?? 0)).parent;
}

interface ProcessStat {
  readonly parent: number;
  /** Of the process itself. */
  readonly own: number;
  /** Of its children that have ended. */
  readonly ended: number;
}

async function readStat(pid: number): Promise<ProcessStat> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  // The name of the program may contain spaces. The fields after it are: state, parent, …
  const fields = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .map(Number);
  const sum = (...at: number[]) => at.reduce((total, index) => total + (fields[index] ?? 0), 0);
  return { parent: fields[1] ?? 0, own: sum(11, 12), ended: sum(13, 14) };
}

async function readProcessMicros(pid: number): Promise<number> {
  return (await readStat(pid)).own * MICROS_PER_TICK;
}

/** The time of a process and of all its children, also of those that have ended. */
async function readTreeMicros(root: number): Promise<number> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number);
  const stats = await Promise.all(pids.map((pid) => readStat(pid).catch(() => undefined)));
  const { own, ended } = await readStat(root);
  const children = stats.filter((stat) => stat?.parent === root).reduce((total, stat) => total + (stat?.own ?? 0), 0);
  return (own + ended + children) * MICROS_PER_TICK;
}
