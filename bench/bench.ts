import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { chart } from './chart.ts';
import { startDatabase } from './database.ts';
import { decisionMicros } from './decision.ts';
import { countEffects } from './effects.ts';
import { measureGrowth } from './growth.ts';
import { measure } from './measure.ts';
import { NOT_INSTALLED, peersAreInstalled, peerVersions } from './peers.ts';
import { listening } from './processes.ts';
import { resultsOf, table } from './report.ts';
import { startOwn, startPeers } from './systems.ts';

const USAGE = `npm run bench -- [--quick] [--rounds N] [--peers] [--write]
npm run bench -- effects
npm run bench -- growth [--rounds N] [--rows N]

What the ledger costs: the gateway beside the same fastify and undici without it, on one machine, in alternating runs.
Only the ratios mean anything.

  --quick   each case once and shortly, to see that it still runs
  --rounds  how many times each case is run (5)
  --peers   also Restate, DBOS and bare PostgreSQL (first: npm ci --prefix bench)
  --write   the figures to bench/results.json, the chart to docs/bench.svg; not with --quick, which has none
  growth    what a call costs with ten thousand and with five million (or --rows) calls in the ledger
  effects   what becomes of one call when the process is killed or the answer is lost, here and with the peers
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

const isWrong =
  !Number.isInteger(rounds) ||
  rounds < 1 ||
  positionals.length > (isEffects || isGrowth ? 1 : 0) ||
  (values.quick && values.write);
if (values.help || isWrong) {
  console.log(USAGE);
  process.exit(values.help ? 0 : 2);
}
if ((values.peers || isEffects) && !peersAreInstalled()) {
  console.error(NOT_INSTALLED);
  process.exit(1);
}

const home = await mkdtemp(join(tmpdir(), 'oncegate-bench-'));
const closing: (() => Promise<unknown>)[] = [() => rm(home, { recursive: true, force: true })];
let closed: Promise<void> | undefined;
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => close().then(() => process.exit(1)));
}
try {
  const starting = startDatabase(home);
  closing.push(async () => (await starting).stop());
  const database = await starting;
  if (isEffects) console.log(await countEffects({ database, home, closing }));
  else if (isGrowth) console.log(await measureGrowth({ database, closing }, [10_000, Number(values.rows)], rounds));
  else await compare(database);
} finally {
  await close();
}

function close(): Promise<void> {
  closed ??= (async () => {
    for (const step of closing.reverse()) await step().catch((error: Error) => console.error(error.message));
  })();
  return closed;
}

async function compare(database: Awaited<ReturnType<typeof startDatabase>>): Promise<void> {
  const upstream = await listening('upstream.mjs');
  closing.push(() => upstream.kill());
  const place = { upstream: upstream.url, database, home, closing };
  const systems = [...(await startOwn(place)), ...(values.peers ? await startPeers(place) : [])];
  const size = values.quick ? { total: 200, alone: 50 } : { total: 6_000, alone: 1_000 };
  const measured = await measure(systems, { ...size, rounds, warm: !values.quick });
  const decision = decisionMicros(values.quick ? 100 : 20_000);
  const on = { cores: cpus().length, node: process.version, ...(values.peers ? peerVersions() : {}) };
  const results = await resultsOf(systems, measured, { on, rounds, decisionMicros: decision });
  console.log(table(results));
  if (!values.write) return;
  await writeFile('bench/results.json', `${JSON.stringify(results, null, 2)}\n`);
  await writeFile('docs/bench.svg', chart(results));
}
