import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../gateway/ledger/embedded/embedded-postgres.ts';
import { startUpstream } from '../faults/upstream.ts';
import { makeGateway } from '../support/gateway.ts';
import { runRollbackLoad } from './rollback-load.ts';
import { crashRollback, createSevenStepSaga, FIRST_KILL_POINTS, LATER_KILL_POINTS } from './rollback-round.ts';
import { buildSagaPolicies } from './saga-policies.ts';

/**
 * Kills the gateway at every kill point of a rollback, once and in all pairs. After each round the saga must be rolled back by
 * itself, in a legal order, and no step twice. With `--load`, rolls many sagas back at once and prints the rate.
 *
 *   tsx test/sagas/saga-campaign.ts [--lanes 2] [--first POINT]
 *   tsx test/sagas/saga-campaign.ts --load [--sagas 1000] [--steps 5]
 */
const { values } = parseArgs({
  options: {
    lanes: { type: 'string', default: '2' },
    first: { type: 'string' },
    load: { type: 'boolean', default: false },
    sagas: { type: 'string', default: '1000' },
    steps: { type: 'string', default: '5' },
  },
});
const dataDir = await mkdtemp(join(tmpdir(), 'oncegate-sagas-'));
const postgres = await startEmbeddedPostgres({ dataDir, log: () => {} });
const started = performance.now();
let violationCount = 0;
try {
  await (values.load ? runLoadCampaign() : runCrashCampaign());
} finally {
  await postgres.stop();
  await rm(dataDir, { recursive: true, force: true });
}
process.exitCode = violationCount === 0 ? 0 : 1;

async function runCrashCampaign(): Promise<void> {
  const firsts = FIRST_KILL_POINTS.filter((point) => values.first === undefined || point === values.first);
  const rounds = [
    ...firsts.map((point) => [point]),
    ...firsts.flatMap((point) => LATER_KILL_POINTS.map((later) => [point, later])),
  ];
  const remaining = [...rounds.entries()];
  let deaths = 0;
  const runLane = async (n: number) => {
    const upstream = await startUpstream();
    const gateway = await makeGateway({
      policies: buildSagaPolicies(upstream.url),
      databaseUrl: await createDatabase(`lane${n}`),
    });
    try {
      for (let next = remaining.shift(); next !== undefined; next = remaining.shift()) {
        const [number, points] = next;
        if (!gateway.isAlive) await gateway.start();
        const saga = await createSevenStepSaga(gateway, upstream, `r${number}`);
        const { violations, died } = await crashRollback(saga, upstream, points);
        deaths += died;
        if (violations.length > 0) violationCount += 1;
        const verdict = violations.length === 0 ? 'held' : `BROKEN\n  ${violations.join('\n  ')}`;
        console.log(`${points.join(', then ')}: died ${died} of ${points.length} times, ${verdict}`);
        await upstream.reset();
      }
    } finally {
      await gateway.dispose();
      await upstream.stop();
    }
  };
  await Promise.all(Array.from({ length: Number(values.lanes) }, (_, n) => runLane(n)));
  const seconds = Math.round((performance.now() - started) / 1000);
  console.log(
    `${rounds.length} rollbacks through ${deaths} deaths in ${seconds} s: ${violationCount} with a broken promise`,
  );
}

async function runLoadCampaign(): Promise<void> {
  const upstream = await startUpstream();
  const gateway = await makeGateway({
    policies: buildSagaPolicies(upstream.url),
    databaseUrl: await createDatabase('load'),
  });
  try {
    await gateway.start();
    const load = { sagas: Number(values.sagas), steps: Number(values.steps), name: 'load' };
    const { violations, undos, seconds } = await runRollbackLoad([gateway], upstream, load);
    for (const violation of violations.slice(0, 20)) console.log(violation);
    violationCount = violations.length;
    const rate = (count: number) => Math.round(count / seconds);
    console.log(
      `${load.sagas} sagas of ${load.steps} steps rolled back in ${seconds.toFixed(1)} s: ${rate(load.sagas)} sagas/s, ${rate(undos)} undos/s, ${violationCount} broken promises`,
    );
  } finally {
    await gateway.dispose();
    await upstream.stop();
  }
}

async function createDatabase(name: string): Promise<string> {
  const admin = new pg.Client({ connectionString: postgres.url });
  await admin.connect();
  await admin.query(`create database ${name}`);
  await admin.end();
  const url = new URL(postgres.url);
  url.pathname = `/${name}`;
  return url.href;
}
