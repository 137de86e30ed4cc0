import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { startEmbeddedPostgres } from '../../gateway/ledger/embedded/embedded-postgres.ts';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { makeGateway } from '../support/gateway.ts';
import { createRandom } from '../support/random.ts';
import { type OnceKind, type PlannedCall, runCrashRound } from './crash-round.ts';
import { startUpstream } from './upstream.ts';

/**
 * Kills the gateway again and again with calls of every kind in flight, and checks after each death that every effect
 * happened at most once and every state is true.
 *
 *   npm run campaign -- --calls 2000 [--seed 1]
 */
const { values } = parseArgs({
  options: { calls: { type: 'string', default: '200' }, seed: { type: 'string', default: String(Date.now() % 1e9) } },
});
const targetKills = Number(values.calls);
const random = createRandom(Number(values.seed));
const KINDS: readonly OnceKind[] = ['key', 'idempotent', 'probe', 'none'];
const CALLS_PER_ROUND = 60;

const dataDir = await mkdtemp(join(tmpdir(), 'oncegate-campaign-'));
const postgres = await startEmbeddedPostgres({ dataDir, log: () => {} });
const upstream = await startUpstream();
const gateway = await makeGateway({
  policies: buildFaultPolicies(upstream.url, { timeout: '2s' }),
  databaseUrl: postgres.url,
});

const started = performance.now();
const violations: string[] = [];
let killed = 0;
let rounds = 0;
console.log(`Killing ${targetKills} calls in flight; seed ${values.seed}.`);
try {
  while (killed < targetKills && violations.length === 0) {
    rounds += 1;
    const calls = Array.from({ length: CALLS_PER_ROUND }, (_, i) => planCall(`r${rounds}-${i}`));
    const deaths: Record<string, string>[] = [{}];
    // In some rounds the gateway also dies once or twice during recovery.
    while (random() < 0.3 && deaths.length < 3)
      deaths.push({ ONCEGATE_DIE_AT: pickRandom(['taken', 'parking', 'probed', 'answered', 'sending']) });
    const verdict = await runCrashRound({
      gateway,
      upstream,
      calls,
      deaths,
      killAfterMs: 5 + random() * 250,
      settleWithinMs: 30_000,
    });
    violations.push(...verdict.violations);
    killed += verdict.killedInFlight;
    await gateway.kill();
    await upstream.reset();
    printProgress();
  }
} finally {
  await gateway.dispose();
  await upstream.stop();
  await postgres.stop();
  await rm(dataDir, { recursive: true, force: true });
}
process.stdout.write('\n');
for (const violation of violations) console.log(violation);
const seconds = Math.round((performance.now() - started) / 1000);
console.log(
  `${killed} calls killed in flight in ${rounds} deaths, ${seconds} s: ${violations.length === 0 ? 'every promise held' : `${violations.length} broken promises`}`,
);
process.exitCode = violations.length === 0 ? 0 : 1;

/**
 * Plans a call that is slow enough to be in flight when the gateway dies. The delay falls before or after the effect; some
 * plans also drop the answer.
 */
function planCall(id: string): PlannedCall {
  const delay = { delay: Math.round(random() * 300) };
  const plans: NonNullable<PlannedCall['plans']>[number][] = [
    pickRandom([{ do: [delay] }, { do: ['apply', delay] }, { do: [delay, 'apply', 'drop'] }, { do: [delay, 'drop'] }]),
  ];
  return { id, kind: pickRandom(KINDS), plans };
}

function pickRandom<T>(items: readonly T[]): T {
  return items[Math.floor(random() * items.length)] as T;
}

function printProgress(): void {
  const share = Math.min(1, killed / targetKills);
  const bar = '#'.repeat(Math.round(share * 30)).padEnd(30, '.');
  const line = `[${bar}] ${killed}/${targetKills} killed in flight, ${rounds} deaths, ${violations.length} broken`;
  process.stdout.write(process.stdout.isTTY ? `\r${line}` : `${line}\n`);
}
