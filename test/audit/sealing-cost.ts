import { spawn } from 'node:child_process';
import { generateKeyPairSync, randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { buildAuditEntry, hashLeaf } from '../../gateway/domain/audit/audit.ts';
import { NoteSigner } from '../../gateway/domain/audit/signed-note.ts';
import { sealLeaves } from '../../gateway/ledger/audit/audit-log.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { startEmbeddedPostgres } from '../../gateway/ledger/embedded/embedded-postgres.ts';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { buildNewCall, buildSuccess } from '../support/call-record.ts';

/**
 * Measures the cost of sealing: claimed and settled calls per second with and without a process that seals the log. The rounds
 * alternate, so that other load on the machine affects both. Also measures how fast a long queue of entries is sealed.
 *
 *   npm run build && npx tsx test/audit/sealing-cost.ts [--rounds 6] [--seconds 6]
 */
const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '6' }, seconds: { type: 'string', default: '6' } },
});
const CONCURRENCY = 128;
const home = await mkdtemp(join(tmpdir(), 'oncegate-cost-'));
const postgres = await startEmbeddedPostgres({ dataDir: join(home, 'postgres'), log: () => {} });
try {
  await migrateDatabase(postgres.url, 'migrations');
  const { privateKey } = generateKeyPairSync('ed25519');
  const keyFile = join(home, 'audit.key');
  await writeFile(keyFile, privateKey.export({ type: 'pkcs8', format: 'pem' }));
  const db = new Database(postgres.url, { max: 8, applicationName: 'cost' });
  const lease = new Lease(db, () => {});
  await lease.start();
  const key = new NoteSigner('test/cost', privateKey);
  const rates: { without: number[]; with: number[] } = { without: [], with: [] };
  await runLoad(db, lease, 2_000);
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const side of round % 2 === 0 ? (['without', 'with'] as const) : (['with', 'without'] as const)) {
      // Seals the queue first, so that a round with sealing does not pay for entries of a round without.
      await sealQueue(db, key);
      const stop = side === 'with' ? await startSealer(keyFile) : async () => {};
      rates[side].push(await runLoad(db, lease, Number(values.seconds) * 1_000));
      await stop();
    }
    console.log(`round ${round + 1}: ${rates.without.at(-1)} calls/s without, ${rates.with.at(-1)} with sealing`);
  }
  const [without, withSealing] = [median(rates.without), median(rates.with)];
  console.log(`median ${without} without, ${withSealing} with: ${((withSealing / without) * 100).toFixed(1)} %`);
  await sealQueue(db, key);
  await fillQueue(100_000);
  const started = performance.now();
  await sealQueue(db, key);
  console.log(`${Math.round(100_000 / ((performance.now() - started) / 1_000))} leaves/s sealed from a long queue`);
  await lease.end();
  await db.close();
} finally {
  await postgres.stop();
  await rm(home, { recursive: true, force: true });
}

/** Returns how many calls per second are claimed and settled by concurrent workers. */
async function runLoad(db: Database, lease: Lease, ms: number): Promise<number> {
  const calls = new CallStore(db);
  const deadline = performance.now() + ms;
  let done = 0;
  const worker = async () => {
    while (performance.now() < deadline) {
      const txn = randomUUID();
      const fields = { txn, agent: 'billing-bot', tool: 'payments.charge', fingerprint: 'ab'.repeat(32) };
      const newCall = buildNewCall(lease.id, {
        txn,
        entry: buildAuditEntry('call_claimed', { ...fields, rule: 'r'.repeat(40) }),
      });
      await calls.claim(newCall);
      const entry = buildAuditEntry('call_succeeded', { ...fields, answer: randomBytes(32).toString('hex') });
      await calls.settle(buildSuccess(txn, { leaf: hashLeaf(entry), entry }));
      done += 1;
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, worker));
  return Math.round(done / (ms / 1_000));
}

async function sealQueue(db: Database, key: NoteSigner): Promise<void> {
  while ((await sealLeaves(db, async (_before, size, root) => key.sign(size, root))) !== undefined);
}

async function fillQueue(count: number): Promise<void> {
  const client = new pg.Client({ connectionString: postgres.url });
  await client.connect();
  const text = `insert into audit_queue (entry) select '{"n":' || n || ',"filler":"' || repeat('x', 250) || '"}' from generate_series(1, $1) n`;
  await client.query(text, [count]);
  await client.end();
}

/** Seals about once per second, like a gateway. Returns a function that stops the process. */
async function startSealer(keyFile: string): Promise<() => Promise<void>> {
  const argv = ['dist/test/audit/sealer.js', postgres.url, 'test/cost', keyFile, join(home, 'kept'), '', 'normal'];
  const child = spawn(process.execPath, argv, { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(child.stdout, 'data');
  return async () => {
    child.kill('SIGKILL');
    await once(child, 'exit');
    await sleep(200);
  };
}

function median(numbers: readonly number[]): number {
  const sorted = numbers.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}
