import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { startEmbeddedPostgres } from '../../gateway/ledger/embedded/embedded-postgres.ts';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { createRandom } from '../support/random.ts';
import { killSealers } from './kill-sealers.ts';

/**
 * Kills the processes that seal the audit log again and again, and checks that the log stays consistent.
 *
 *   npm run build && npx tsx test/audit/kill-campaign.ts --kills 500 [--seed 1]
 */
const { values } = parseArgs({
  options: { kills: { type: 'string', default: '500' }, seed: { type: 'string', default: String(Date.now() % 1e9) } },
});
const kills = Number(values.kills);
const home = await mkdtemp(join(tmpdir(), 'oncegate-kills-'));
const postgres = await startEmbeddedPostgres({ dataDir: join(home, 'postgres'), log: () => {} });
console.log(`${kills} kills; seed ${values.seed}`);
try {
  await migrateDatabase(postgres.url, 'migrations');
  const faults = await killSealers({
    databaseUrl: postgres.url,
    home,
    kills,
    random: createRandom(Number(values.seed)),
    progress: (done) => {
      if (done % 50 === 0) console.log(`${done} kills`);
    },
  });
  for (const fault of faults) console.log(fault);
  console.log(
    `${faults.length === 0 ? kills : 'Not all'} kills: ${faults.length === 0 ? 'the log is consistent' : `${faults.length} faults`}`,
  );
  process.exitCode = faults.length === 0 ? 0 : 1;
} finally {
  await postgres.stop();
  await rm(home, { recursive: true, force: true });
}
