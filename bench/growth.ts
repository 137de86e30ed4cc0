import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import pg from 'pg';
import type { Gateway } from '../test/support/gateway.ts';
import type { BenchDatabaseServer } from './database.ts';
import { median, type Sample, sendLoad } from './load.ts';
import { startMcpServer } from './mcp.ts';
import { BENCH_AGENT_KEY, buildHttpCall, makeBenchGateway } from './oncegate.ts';
import { type ServerProcess, startServerProcess } from './processes.ts';

interface GrowthBenchSetup {
  readonly database: BenchDatabaseServer;
  readonly cleanups: (() => Promise<unknown>)[];
}

interface FilledLedger {
  readonly rows: number;
  readonly gateway: Gateway;
  readonly client: pg.Client;
  readonly samples: Sample[];
  /** How often a call was repeated after a 503. */
  readonly unavailable: { count: number };
  walBytes: number;
}

const BODY = JSON.stringify({ order: 'o-1', amount: 1200, note: 'y'.repeat(900) });
const TEMPLATE_CALLS = 200;
const CALLS_PER_ROUND = 4_000;
const FILL_BATCH_ROWS = 250_000;
/** The tables that keep something of a call that has ended. */
const CALL_TABLES = ['calls', 'settlements', 'undos', 'call_events'] as const;

/** Measures a call with a small and with a large ledger: two gateways with a ledger each, in turns. */
export async function measureGrowth(
  { database, cleanups }: GrowthBenchSetup,
  sizes: readonly [number, number],
  rounds: number,
): Promise<string> {
  const [upstream, mcp] = [await startServerProcess('upstream.mjs'), await startMcpServer()];
  cleanups.push(
    () => upstream.kill(),
    () => mcp.kill(),
  );
  const ledgers: FilledLedger[] = [];
  for (const rows of sizes) ledgers.push(await fillLedger(rows, upstream, mcp, database, cleanups));
  for (let round = 0; round <= rounds; round += 1) {
    for (const ledger of ledgers) {
      const from = await readWalPosition(ledger.client);
      const sample = await sendLoad(
        ledger.gateway.url,
        CALLS_PER_ROUND,
        64,
        buildHttpCall(BENCH_AGENT_KEY, BODY)(`round-${round}`),
        ledger.unavailable,
      );
      if (round === 0) continue;
      ledger.samples.push(sample);
      ledger.walBytes += Number((await readWalPosition(ledger.client)) - from);
    }
    process.stderr.write(round === 0 ? 'warm-up done\n' : `round ${round} of ${rounds}\n`);
  }
  return renderReport(ledgers, rounds);
}

/** Creates a ledger with so many calls, copied from calls that were really made. */
async function fillLedger(
  rows: number,
  upstream: ServerProcess,
  mcp: ServerProcess,
  database: BenchDatabaseServer,
  cleanups: GrowthBenchSetup['cleanups'],
): Promise<FilledLedger> {
  const url = await database.createDatabase(`growth_${rows}`);
  const gateway = await makeBenchGateway(upstream.url, `${mcp.url}/mcp`, url);
  cleanups.push(() => gateway.dispose());
  await gateway.start();
  await sendLoad(gateway.url, TEMPLATE_CALLS, 16, buildHttpCall(BENCH_AGENT_KEY, BODY)('template'));
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  cleanups.push(() => client.end());
  await client.query(`create temporary table templates as select txn from settlements limit ${TEMPLATE_CALLS}`);
  const copyCalls = await buildCopyStatement(client);
  for (let inserted = TEMPLATE_CALLS; inserted < rows; inserted += FILL_BATCH_ROWS) {
    const batch = Math.min(FILL_BATCH_ROWS, rows - inserted);
    await client.query(copyCalls, [Math.ceil(batch / TEMPLATE_CALLS)]);
    process.stderr.write(`\rFilling a ledger: ${inserted + batch} of ${rows} calls `);
  }
  process.stderr.write('\n');
  await client.query(`vacuum analyze ${CALL_TABLES.join(', ')}`);
  await client.query('checkpoint');
  // Flush the page cache now, so that its writes do not disturb the first calls.
  await promisify(execFile)('sync');
  return { rows, gateway, client, samples: [], unavailable: { count: 0 }, walBytes: 0 };
}

/** Copies the rows of each call in `templates` as often as its parameter says, each time under a new txn. */
async function buildCopyStatement(client: pg.Client): Promise<string> {
  const { rows: columns } = await client.query<{ table: (typeof CALL_TABLES)[number]; names: string }>(
    `select table_name as table, string_agg(quote_ident(column_name), ', ' order by ordinal_position) as names
     from information_schema.columns
     where table_schema = 'public' and table_name = any ($1) and column_name <> 'txn' and is_generated = 'NEVER' and is_identity = 'NO'
     group by 1`,
    [CALL_TABLES],
  );
  const copies = columns.map(
    ({ table, names }) => `${table}_copied as (
      insert into ${table} (txn, ${names}) select copies.txn, ${names} from copies join ${table} t on t.txn = copies.template
    )`,
  );
  return `with copies as materialized (
      select txn as template, gen_random_uuid() as txn from templates cross join generate_series(1, $1::int)
    ), ${copies.join(', ')} select`;
}

async function readWalPosition(client: pg.Client): Promise<bigint> {
  const { rows } = await client.query<{ at: string }>(`select pg_current_wal_lsn() - '0/0' as at`);
  return BigInt(rows[0]?.at ?? 0);
}

async function renderReport(ledgers: readonly FilledLedger[], rounds: number): Promise<string> {
  const lines = [
    `${`\n64 in flight, median of ${rounds}`.padEnd(29)}calls/s   p50 ms   p99 ms  WAL/call  tables/call  indexes/call   503s`,
  ];
  for (const { rows, client, samples, unavailable, walBytes } of ledgers) {
    const { rows: sizes } = await client.query<{ table: string; indexes: string; count: string }>(
      `select sum(pg_table_size(name::regclass)) as table, sum(pg_indexes_size(name::regclass)) as indexes, (select count(*) from calls) as count
       from unnest($1::text[]) as name`,
      [CALL_TABLES],
    );
    const size = sizes[0];
    const each = (bytes: string | undefined) => `${Math.round(Number(bytes ?? 0) / Number(size?.count ?? 1))} B`;
    const wal = `${(walBytes / (CALLS_PER_ROUND * samples.length) / 1024).toFixed(1)} KiB`;
    const of = (pick: (sample: Sample) => number) => median(samples.map(pick));
    lines.push(
      `${rows} calls`.padEnd(28) +
        of((s) => s.perSecond)
          .toFixed(0)
          .padStart(7) +
        of((s) => s.p50)
          .toFixed(1)
          .padStart(9) +
        of((s) => s.p99)
          .toFixed(1)
          .padStart(9) +
        wal.padStart(10) +
        each(size?.table).padStart(13) +
        each(size?.indexes).padStart(14) +
        String(unavailable.count).padStart(7),
    );
  }
  const [small, large] = ledgers.map(({ samples }) => median(samples.map((sample) => sample.perSecond)));
  lines.push(`\nThe gateway with the small ledger is ${((small ?? 0) / (large ?? 1)).toFixed(2)} times as fast.`);
  return lines.join('\n');
}
