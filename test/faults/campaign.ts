import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { startEmbedded } from '../../gateway/ledger/embedded.ts';
import { faultPolicies } from '../support/fault-policies.ts';
import { makeGateway } from '../support/gateway.ts';
import { type CrashKind, crashRound, type PlannedCall } from './crash-round.ts';
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
const wanted = Number(values.calls);
const random = generator(Number(values.seed));
const KINDS: readonly CrashKind[] = ['key', 'nature', 'probe', 'none'];
const AT_ONCE = 60;

const dataDir = await mkdtemp(join(tmpdir(), 'oncegate-campaign-'));
const postgres = await startEmbedded({ dataDir, log: () => {} });
const upstream = await startUpstream();
const gateway = await makeGateway({
  policies: faultPolicies(upstream.url, { timeout: '2s' }),
  databaseUrl: postgres.url,
});

const started = performance.now();
const found: string[] = [];
let killed = 0;
let rounds = 0;
console.log(`killing ${wanted} calls in flight; seed ${values.seed}`);
try {
  while (killed < wanted && found.length === 0) {
    rounds += 1;
    const calls = Array.from({ length: AT_ONCE }, (_, i) => plannedCall(`r${rounds}-${i}`));
    const deaths: Record<string, string>[] = [{}];
    // Now and then it dies in recovery too, once or twice.
    while (random() < 0.3 && deaths.length < 3)
      deaths.push({ ONCEGATE_DIE_AT: pick(['taken', 'parking', 'probed', 'answered', 'sending']) });
    const verdict = await crashRound({
      gateway,
      upstream,
      calls,
      deaths,
      killAfterMs: 5 + random() * 250,
      restWithinMs: 30_000,
    });
    found.push(...verdict.violations);
    killed += verdict.killedInFlight;
    await gateway.kill();
    await upstream.reset();
    progress();
  }
} finally {
  await gateway.dispose();
  await upstream.stop();
  await postgres.stop();
  await rm(dataDir, { recursive: true, force: true });
}
process.stdout.write('\n');
for (const violation of found) console.log(violation);
const seconds = Math.round((performance.now() - started) / 1000);
console.log(
  `${killed} calls killed in flight in ${rounds} deaths, ${seconds} s: ${found.length === 0 ? 'every promise held' : `${found.length} broken promises`}`,
);
process.exitCode = found.length === 0 ? 0 : 1;

/** Slow enough to be in flight when the gateway dies: before the effect, after it, or with the answer lost anyway. */
function plannedCall(id: string): PlannedCall {
  const delay = { delay: Math.round(random() * 300) };
  const plans: NonNullable<PlannedCall['plans']>[number][] = [
    pick([{ do: [delay] }, { do: ['apply', delay] }, { do: [delay, 'apply', 'drop'] }, { do: [delay, 'drop'] }]),
  ];
  return { id, kind: pick(KINDS), plans };
}

function pick<T>(items: readonly T[]): T {
  return items[Math.floor(random() * items.length)] as T;
}

function progress(): void {
  const share = Math.min(1, killed / wanted);
  const bar = '#'.repeat(Math.round(share * 30)).padEnd(30, '.');
  const line = `[${bar}] ${killed}/${wanted} killed in flight, ${rounds} deaths, ${found.length} broken`;
  process.stdout.write(process.stdout.isTTY ? `\r${line}` : `${line}\n`);
}

/** A small seeded generator (mulberry32), so that a finding can be repeated. */
function generator(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
