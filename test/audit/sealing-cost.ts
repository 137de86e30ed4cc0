import { spawn } from 'node:child_process';
import { generateKeyPairSync, randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { auditEntry, leafHash } from '../../gateway/domain/audit.ts';
import { NoteKey } from '../../gateway/domain/signed-note.ts';
import { unchanged } from '../../gateway/flow/record.ts';
import { sealLeaves } from '../../gateway/ledger/audit-log.ts';
import { Calls } from '../../gateway/ledger/calls.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { startEmbedded } from '../../gateway/ledger/embedded.ts';
import { migrate } from '../../gateway/ledger/migrate.ts';
import { Lease } from '../../gateway/ledger/processes.ts';
import { intentOf } from '../support/intent.ts';

/**
 * What sealing costs the ledger: calls claimed and settled a second, with a process beside that seals the log and without one,
 * in turns, so that whatever else the machine does hits both; and how fast leaves are sealed when many wait.
 *
 *   npm run build && npx tsx test/audit/sealing-cost.ts [--rounds 6] [--seconds 6]
 */
const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '6' }, seconds: { type: 'string', default: '6' } },
});
const AT_ONCE = 128;
const home = await mkdtemp(join(tmpdir(), 'oncegate-cost-'));
const postgres = await startEmbedded({ dataDir: join(home, 'postgres'), log: () => {} });
try {
  await migrate(postgres.url, 'migrations');
  const { privateKey } = generateKeyPairSync('ed25519');
  const keyFile = join(home, 'audit.key');
  await writeFile(keyFile, privateKey.export({ type: 'pkcs8', format: 'pem' }));
  const db = new Database(postgres.url, { max: 8, applicationName: 'cost' });
  const lease = new Lease(db, () => {});
  await lease.start();
  const key = new NoteKey('test/cost', privateKey);
  const rates: { without: number[]; with: number[] } = { without: [], with: [] };
  await load(db, lease, 2_000);
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const side of round % 2 === 0 ? (['without', 'with'] as const) : (['with', 'without'] as const)) {
      // Whatever waits from the round without is not to be sealed on the other's account.
      await drain(db, key);
      const stop = side === 'with' ? await sealer(keyFile) : async () => {};
      rates[side].push(await load(db, lease, Number(values.seconds) * 1_000));
      await stop();
    }
    console.log(`round ${round + 1}: ${rates.without.at(-1)} calls/s without, ${rates.with.at(-1)} with sealing`);
  }
  const [without, beside] = [median(rates.without), median(rates.with)];
  console.log(`median ${without} without, ${beside} with: ${((beside / without) * 100).toFixed(1)} %`);
  await drain(db, key);
  await fill(100_000);
  const started = performance.now();
  await drain(db, key);
  console.log(`${Math.round(100_000 / ((performance.now() - started) / 1_000))} leaves/s sealed when many wait`);
  await lease.end();
  await db.close();
} finally {
  await postgres.stop();
  await rm(home, { recursive: true, force: true });
}

/** Calls a second that are claimed and settled, many at once. */
async function load(db: Database, lease: Lease, ms: number): Promise<number> {
  const calls = new Calls(db);
  const until = performance.now() + ms;
  let done = 0;
  const worker = async () => {
    while (performance.now() < until) {
      const txn = randomUUID();
      const about = { txn, agent: 'billing-bot', tool: 'payments.charge', fingerprint: 'ab'.repeat(32) };
      const intent = intentOf(lease.id, { txn, entry: auditEntry('call_claimed', { ...about, rule: 'r'.repeat(40) }) });
      await calls.claim(intent);
      const entry = auditEntry('call_succeeded', { ...about, answer: randomBytes(32).toString('hex') });
      const standing = { ...intent, step: 0, state: 'sending', attempt: 1, attemptOpen: true, unresolved: 0 } as const;
      await calls.advance({
        ...unchanged({ ...standing, unknownSince: null }),
        ...{ state: 'succeeded', custody: 'close', outcome: 'answered', evidence: 'answer', attemptOpen: false },
        leaf: leafHash(entry),
        entry,
      });
      done += 1;
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return Math.round(done / (ms / 1_000));
}

async function drain(db: Database, key: NoteKey): Promise<void> {
  while ((await sealLeaves(db, async (_before, size, root) => key.sign(size, root))) !== undefined);
}

async function fill(count: number): Promise<void> {
  const client = new pg.Client({ connectionString: postgres.url });
  await client.connect();
  const text = `insert into audit_queue (entry) select '{"n":' || n || ',"filler":"' || repeat('x', 250) || '"}' from generate_series(1, $1) n`;
  await client.query(text, [count]);
  await client.end();
}

/** As a gateway does it: about once a second. */
async function sealer(keyFile: string): Promise<() => Promise<void>> {
  const argv = ['test/audit/sealer.mjs', postgres.url, 'test/cost', keyFile, join(home, 'kept'), '', 'usual'];
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
