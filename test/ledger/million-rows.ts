import { fork } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../gateway/ledger/embedded/embedded-postgres.ts';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { createRandom } from '../support/random.ts';
import { fillLedger } from './fill-ledger.ts';

/**
 * Fills a ledger of migration 0019 with a million calls in every state, migrates it with the current migrations, kills the
 * migrating process at random moments, and compares the ledger with a summary made before.
 *
 *   npx tsx test/ledger/million-rows.ts [--rows 1000000] [--kills 5] [--within-ms 5000] [--seed 1] [--migrations DIR]
 */
const OLD_SCHEMA = 19;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rows: { type: 'string', default: '1000000' },
    kills: { type: 'string', default: '5' },
    'within-ms': { type: 'string', default: '5000' },
    seed: { type: 'string', default: String(Date.now() % 1e9) },
    migrations: { type: 'string', default: 'migrations' },
  },
});
async function runCampaign(): Promise<void> {
  const home = await mkdtemp(join(tmpdir(), 'oncegate-rows-'));
  const postgres = await startEmbeddedPostgres({ dataDir: join(home, 'data'), log: () => {} });
  const client = new pg.Client({ connectionString: postgres.url });
  try {
    await client.connect();
    console.log(`${values.rows} rows; ${values.kills} kills; seed ${values.seed}`);
    await timed('schema 0019', () => migrateToOldSchema(postgres.url, join(home, 'old')));
    await timed('filled', () => fillLedger(client, Number(values.rows)));
    await printSize(client);
    const before = await timed('summarised', () => summarizeAll(client, 'before'));
    await timed('migrated', () => migrateWithKills(postgres.url));
    await printSize(client);
    const after = await timed('summarised', () => summarizeAll(client, 'after'));
    const differences = compareSummaries(before, after);
    for (const difference of differences) console.log(difference);
    const calls = [...before].filter(([part]) => part.startsWith('calls '));
    for (const [part, columns] of calls) console.log(`${part}: ${columns.get('count')}`);
    console.log(differences.length === 0 ? 'The ledgers are equal.' : `${differences.length} differences.`);
    process.exitCode = differences.length === 0 ? 0 : 1;
  } finally {
    await client.end();
    await postgres.stop();
    await rm(home, { recursive: true, force: true });
  }
}

async function timed<T>(what: string, work: () => Promise<T>): Promise<T> {
  const startedAt = performance.now();
  const result = await work();
  console.log(`${what} in ${((performance.now() - startedAt) / 1_000).toFixed(1)} s`);
  return result;
}

async function migrateToOldSchema(url: string, directory: string): Promise<void> {
  const names = (await readdir('migrations')).filter((name) => Number(name.slice(0, 4)) <= OLD_SCHEMA);
  for (const name of names) await cp(join('migrations', name), join(directory, name));
  await migrateDatabase(url, directory);
}

/** Kills the migrator at random moments, and then lets it finish. */
async function migrateWithKills(url: string): Promise<void> {
  const random = createRandom(Number(values.seed));
  const script = fileURLToPath(import.meta.url);
  for (let killsLeft = Number(values.kills); ; killsLeft--) {
    const migrator = fork(script, ['migrator', url, '--migrations', values.migrations]);
    const exited = once(migrator, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
    const killed = new AbortController();
    if (killsLeft > 0) {
      sleep(random() * Number(values['within-ms']), undefined, { signal: killed.signal }).then(
        () => migrator.kill('SIGKILL'),
        () => {},
      );
    }
    const [code, signal] = await exited;
    killed.abort();
    if (code === 0) return console.log(`The migrations were complete with ${killsLeft} kills left.`);
    if (signal !== 'SIGKILL') throw new Error(`The migrator ended with ${code ?? signal}.`);
    console.log('  killed');
  }
}

async function printSize(client: pg.Client): Promise<void> {
  const { rows } = await client.query(`select pg_size_pretty(pg_database_size(current_database())) as size`);
  console.log(`database: ${rows[0]?.size}`);
}

/** By part (such as `calls succeeded`): the count, and a checksum of each column. */
type Summary = ReadonlyMap<string, ReadonlyMap<string, string>>;

async function summarizeAll(client: pg.Client, when: 'before' | 'after'): Promise<Summary> {
  const parts = new Map<string, ReadonlyMap<string, string>>();
  for (const comparison of COMPARISONS) {
    const { fields } = await client.query(`select * from (${comparison[when]}) q limit 0`);
    const columns = fields.map(({ name }) => name);
    // The hash of the key and the value binds a value to its row. A sum does not depend on the order of the rows.
    const sums = columns.map(
      (name) => `sum(hash_record_extended(row(q.${comparison.key}, q."${name}"), 0))::text as "${name}"`,
    );
    const { rows } = await client.query<Record<string, string>>(
      `select ${comparison.part} as "#part", count(*)::text as "#count", ${sums.join(', ')} from (${comparison[when]}) q group by 1`,
    );
    for (const row of rows) {
      const checksums = columns.map((name) => [name, row[name] ?? ''] as const);
      parts.set(`${comparison.name} ${row['#part']}`, new Map([['count', row['#count'] ?? ''], ...checksums]));
    }
  }
  return parts;
}

function compareSummaries(before: Summary, after: Summary): string[] {
  const names = new Set([...before.keys(), ...after.keys()]);
  return [...names].flatMap((part) => {
    const [old, current] = [before.get(part), after.get(part)];
    if (old === undefined || current === undefined) return [`${part}: ${old === undefined ? 'new' : 'gone'}`];
    return [...old].flatMap(([column, value]) => {
      const now = current.get(column);
      if (now === value) return [];
      return [column === 'count' ? `${part}: ${value} rows became ${now}` : `${part}: ${column} differs`];
    });
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// What must be equal before and after. `before` reads the tables of migration 0019, and `after` reads those of the newest
// migration under the names and types of `before`. Columns that only `after` has are not compared.
// ---------------------------------------------------------------------------------------------------------------------

interface Comparison {
  readonly name: string;
  /** Identifies a row. */
  readonly key: string;
  /** An expression over the columns. Each of its values is counted and summed apart. */
  readonly part: string;
  readonly before: string;
  readonly after: string;
}

/** Facts of the intent, which every call keeps. */
const KEPT = `c.txn, c.agent, c.tool, c.key, c.identity::text, c.fingerprint, c.kind::text, c.created_at, c.key_lifetime_ms, c.policy_version, c.rule,
  c.args, c.request, c.sealed, c.erased_at, c.saga, c.ordinal, c.depends_on, c.undo, c.undo_of, c.run, c.epoch`;
/** Facts about attempts, which only an open call keeps. */
const OPEN_ONLY = [
  'fence',
  'attempt_open',
  'unresolved',
  'round_from',
  'round_at',
  'recalled',
  'fenced',
  'attempt_detail',
  'disproved_by',
];
const UNDO = ['state', 'reason', 'txn', 'tries', 'from', 'since', 'due_at', 'args', 'sealed', 'doubt'];

const CALLS_BEFORE = `select ${KEPT}, c.state, c.attempt, c.owner_deaths, c.first_sent_at, c.unknown_since, c.lock_token, c.detail,
  ${OPEN_ONLY.map((name) => `case when c.settled_at is null then c.${name} end as ${name}`).join(', ')},
  case when c.settled_at is null then c.step end as update_number, case when c.settled_at is null then c.retry_requested end as retry_requested,
  c.settled_at, c.outcome, c.problem, c.answer, case when c.settled_at is not null then coalesce(c.evidence, 'gateway') end as evidence,
  case when c.settled_at is not null then c.resolved_by end as resolved_by, c.leaf, coalesce(c.verdict = 'retry', false) as retried, c.contradiction,
  c.events, c.before, c.waived, ${UNDO.map((name) => `c.undo_${name}`).join(', ')},
  case when p.txn is not null then c.delivered_at end as delivered_at
  from calls c left join (select distinct txn from repeats) p using (txn)`;
const CALLS_AFTER = `select ${KEPT}, coalesce(s.state::text, o.state::text) as state, coalesce(s.attempt, o.attempt) as attempt,
  coalesce(s.owner_deaths, o.owner_deaths) as owner_deaths, coalesce(s.first_sent_at, o.first_sent_at) as first_sent_at,
  coalesce(s.unknown_since, o.unknown_since) as unknown_since, coalesce(s.lock_token, o.lock_token) as lock_token,
  coalesce(s.detail, o.detail) as detail,
  ${OPEN_ONLY.map((name) => `o.${name}`).join(', ')}, o.update_number, o.retry_requested,
  s.settled_at, s.outcome, s.problem, s.answer, s.evidence::text, s.resolved_by, s.leaf,
  coalesce(s.retried_by, o.retried_by) is not null as retried,
  (select e.event ->> 'detail' from call_events e where e.txn = c.txn and e.event ->> 'what' = 'contradiction') as contradiction,
  coalesce((select jsonb_agg(e.event order by e.id) from call_events e where e.txn = c.txn and e.event ->> 'what' <> 'contradiction'), '[]') as events,
  u.before, coalesce(u.waived, false) as waived, coalesce(u.state::text, 'none') as undo_state, u.reason as undo_reason, u.undo_txn,
  coalesce(u.tries, 0) as undo_tries, coalesce(u.tries_from, 0) as undo_from, u.since as undo_since, u.due_at as undo_due_at,
  u.args as undo_args, u.sealed as undo_sealed, u.doubt as undo_doubt,
  p.delivered_at
  from calls c left join open_calls o using (txn) left join settlements s using (txn) left join undos u using (txn)
  left join repeats p using (txn)`;
const OPEN_CALLS_BEFORE = 'select txn, owner, due_at, run, locked from open_calls';
const OPEN_CALLS_AFTER = 'select txn, owner, due_at, run, lock_token is not null as locked from open_calls';

const buildUnchangedComparison = (name: string, key: string): Comparison => {
  const rows = `select * from ${name}`;
  return { name, key, part: `'rows'`, before: rows, after: rows };
};

const COMPARISONS: readonly Comparison[] = [
  { name: 'calls', key: 'txn', part: `state || ' ' || undo_state`, before: CALLS_BEFORE, after: CALLS_AFTER },
  {
    name: 'open_calls',
    key: 'txn',
    part: `(owner is not null)::text`,
    before: OPEN_CALLS_BEFORE,
    after: OPEN_CALLS_AFTER,
  },
  {
    name: 'repeats',
    key: 'slot',
    part: `'rows'`,
    before: 'select slot, generation, txn from repeats',
    after: 'select slot, generation, txn from repeats',
  },
  buildUnchangedComparison('joins', 'txn'),
  buildUnchangedComparison('aliases', 'alias'),
  buildUnchangedComparison('approvals', 'txn'),
  buildUnchangedComparison('notices', 'id'),
  buildUnchangedComparison('locks', 'id'),
  buildUnchangedComparison('runs', 'id'),
  buildUnchangedComparison('sagas', 'id'),
  buildUnchangedComparison('undo_work', 'id'),
  buildUnchangedComparison('sweep_later', 'txn'),
];

const [role, migratorUrl = ''] = positionals;
if (role === 'migrator') await migrateDatabase(migratorUrl, values.migrations, (line) => console.log(`  ${line}`));
else await runCampaign();
