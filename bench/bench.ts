import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { renderChart } from './chart.ts';
import { measureCost } from './cost.ts';
import { startDatabaseServer } from './database.ts';
import { measureDecisionMicros } from './decision.ts';
import { countEffects } from './effects.ts';
import { measureGrowth } from './growth.ts';
import { measure } from './measure.ts';
import { arePeersInstalled, PEERS_NOT_INSTALLED, readPeerVersions } from './peers.ts';
import { startServerProcess } from './processes.ts';
import { buildResults, renderTable } from './report.ts';
import { startOwnSystems, startPeerSystems } from './systems.ts';

const USAGE = `npm run bench -- [--quick] [--rounds N] [--peers] [--write]
npm run bench -- effects
npm run bench -- growth [--rounds N] [--rows N]
npm run bench -- cost [--rounds N]

Measures what the ledger costs: the gateway, and a proxy of the same fastify and undici without a ledger, in alternating
runs on one machine. Only the ratios mean anything.

  --quick   runs each case once and briefly, to see that it still works
  --rounds  runs each case so many times (default 5)
  --peers   also measures Restate, DBOS and bare PostgreSQL (first: npm ci --prefix bench)
  --write   writes bench/results.json and docs/bench.svg; not with --quick
  growth    compares the cost of a call with ten thousand and with five million (or --rows) calls in the ledger
  cost      measures the processor time, WAL and disk of a first call
  effects   counts the effects of one call when the process is killed or the answer is lost, also for the peers
`;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    quick: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '5' },
    peers: { type: 'boolean', default: false },
    write: { type: 'boolean', default: false },
    rows: { type: 'string', default: '5000000' },
    help: { type: 'boolean', default: false },
  },
});
const rounds = values.quick ? 1 : Number(values.rounds);
const isEffects = positionals[0] === 'effects';
const isGrowth = positionals[0] === 'growth';
const isCost = positionals[0] === 'cost';

const isUsageError =
  !Number.isInteger(rounds) ||
  rounds < 1 ||
  positionals.length > (isEffects || isGrowth || isCost ? 1 : 0) ||
  (values.quick && values.write);
if (values.help || isUsageError) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
if ((values.peers || isEffects) && !arePeersInstalled()) {
  console.error(PEERS_NOT_INSTALLED);
  process.exit(1);
}

const home = await mkdtemp(join(tmpdir(), 'oncegate-bench-'));
const cleanups: (() => Promise<unknown>)[] = [() => rm(home, { recursive: true, force: true })];
let cleanupsDone: Promise<void> | undefined;
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => runCleanups().then(() => process.exit(1)));
}
try {
  const starting = startDatabaseServer(home);
  cleanups.push(async () => (await starting).stop());
  const database = await starting;
  if (isEffects) console.log(await countEffects({ database, home, cleanups }));
  else if (isGrowth) console.log(await measureGrowth({ database, cleanups }, [10_000, Number(values.rows)], rounds));
  else if (isCost) console.log(await measureCost({ database, cleanups }, rounds));
  else await compareSystems(database);
} finally {
  await runCleanups();
}

function runCleanups(): Promise<void> {
  cleanupsDone ??= (async () => {
    for (const step of cleanups.reverse()) await step().catch((error: Error) => console.error(error.message));
  })();
  return cleanupsDone;
}

async function compareSystems(database: Awaited<ReturnType<typeof startDatabaseServer>>): Promise<void> {
  const upstream = await startServerProcess('upstream.mjs');
  cleanups.push(() => upstream.kill());
  const setup = { upstream: upstream.url, database, home, cleanups };
  const systems = [...(await startOwnSystems(setup)), ...(values.peers ? await startPeerSystems(setup) : [])];
  const size = values.quick ? { total: 200, alone: 50 } : { total: 6_000, alone: 1_000 };
  const measured = await measure(systems, { ...size, rounds, hasWarmUp: !values.quick });
  const decision = measureDecisionMicros(values.quick ? 100 : 20_000);
  const on = { cores: cpus().length, node: process.version, ...(values.peers ? readPeerVersions() : {}) };
  const results = await buildResults(systems, measured, { on, rounds, decisionMicros: decision });
  console.log(renderTable(results));
  if (!values.write) return;
  await writeFile('bench/results.json', `${JSON.stringify(results, null, 2)}\n`);
  await writeFile('docs/bench.svg', renderChart(results));
}
