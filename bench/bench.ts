import { type ChildProcess, spawn } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { decisionMicros } from './decision.ts';
import { fire, median, type Sample } from './load.ts';

/**
 * What the ledger costs: the gateway beside the same fastify and undici without it, on one machine, in alternating runs.
 * Only the ratios mean anything. `--quick` runs each once, to see that it still runs.
 */
const { values } = parseArgs({
  options: { quick: { type: 'boolean', default: false }, rounds: { type: 'string', default: '5' } },
});
const rounds = values.quick ? 1 : Number(values.rounds);
const total = values.quick ? 200 : 6_000;
const alone = values.quick ? 50 : 1_000;

const KEY = 'bench-key';
const home = await mkdtemp(join(tmpdir(), 'oncegate-bench-'));
const children: ChildProcess[] = [];
const args = JSON.stringify({ order: 'o-1', amount: 1200, note: 'y'.repeat(900) });

try {
  const upstream = await listening('bench/upstream.mjs', {});
  const proxy = await listening('bench/plain-proxy.mjs', { UPSTREAM: upstream });
  const gateway = await startGateway(upstream);
  const shot = (run: string) => (i: number) => ({
    path: '/v1/tools/pay.charge',
    headers: { authorization: `Bearer ${KEY}`, 'idempotency-key': `${run}-${i}` },
    body: args,
  });
  const cases: Record<string, (run: string) => Promise<Sample>> = {
    'proxy without ledger, 64 at once': (run) => fire(proxy, total, 64, shot(run)),
    'first calls, 64 at once': (run) => fire(gateway, total, 64, shot(run)),
    'replays, 64 at once': () => fire(gateway, total, 64, (i) => shot('replayed')(i % 500)),
    'proxy without ledger, alone': (run) => fire(proxy, alone, 1, shot(run)),
    'first calls, alone': (run) => fire(gateway, alone, 1, shot(run)),
    'replays, alone': () => fire(gateway, alone, 1, (i) => shot('replayed')(i % 500)),
  };
  await fire(gateway, 500, 16, shot('replayed'));
  for (const run of Object.values(cases)) if (!values.quick) await run(`warm-${randomUUID()}`);

  const samples = new Map<string, Sample[]>(Object.keys(cases).map((name) => [name, []]));
  for (let round = 1; round <= rounds; round += 1) {
    for (const [name, run] of Object.entries(cases)) samples.get(name)?.push(await run(randomUUID()));
    process.stderr.write(`round ${round} of ${rounds}\n`);
  }
  report(samples);
  console.log(`\ndecision over 200 rules: ${decisionMicros(values.quick ? 100 : 20_000).toFixed(1)} µs`);
  console.log(`resident memory of the gateway: ${await residentMiB()} MiB`);
} finally {
  for (const child of children.reverse()) {
    child.kill('SIGTERM');
    if (child.exitCode === null) await once(child, 'exit');
  }
  await rm(home, { recursive: true, force: true });
}

function report(samples: ReadonlyMap<string, readonly Sample[]>): void {
  const rate = (name: string) => median((samples.get(name) ?? []).map((sample) => sample.perSecond));
  console.log(
    `\n${'median of '.concat(String(rounds)).padEnd(36)}${'calls/s'.padStart(9)}${'spread'.padStart(14)}${'of proxy'.padStart(10)}${'p50 ms'.padStart(9)}${'p99 ms'.padStart(9)}`,
  );
  for (const [name, all] of samples) {
    const rates = all.map((sample) => sample.perSecond);
    const base = rate(name.endsWith('alone') ? 'proxy without ledger, alone' : 'proxy without ledger, 64 at once');
    const spread = `${Math.min(...rates).toFixed(0)}–${Math.max(...rates).toFixed(0)}`;
    const columns = [
      name.padEnd(36),
      rate(name).toFixed(0).padStart(9),
      spread.padStart(14),
      (rate(name) / base).toFixed(2).padStart(10),
      median(all.map((sample) => sample.p50))
        .toFixed(2)
        .padStart(9),
      median(all.map((sample) => sample.p99))
        .toFixed(2)
        .padStart(9),
    ];
    console.log(columns.join(''));
  }
}

async function startGateway(upstream: string): Promise<string> {
  await mkdir(join(home, 'policies'));
  await writeFile(
    join(home, 'policies', 'bench.yaml'),
    `
upstreams: { pay: { adapter: http, url: "${upstream}", allowPrivate: true, concurrency: 64 } }
tools:
  pay.charge: { upstream: pay, once: { by: key, header: Idempotency-Key }, request: { method: POST, path: /charges, body: "\${args}" }, input: { type: object } }
agents: { bench: { keys: ["sha256:${createHash('sha256').update(KEY).digest('hex')}"], rules: [{ allow: pay.* }] } }
`,
  );
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const { DATABASE_URL: _, ...inherited } = process.env;
  children.push(
    spawn(process.execPath, [resolve('bin/oncegate.js'), 'start'], {
      cwd: home,
      env: { ...inherited, NODE_ENV: 'production', PORT: String(port), ONCEGATE_DEMO: '0', LOG_LEVEL: 'warn' },
      stdio: ['ignore', 'ignore', 'inherit'],
    }),
  );
  const url = `http://127.0.0.1:${port}`;
  for (;;) {
    const ready = await fetch(`${url}/readyz`).catch(() => undefined);
    await ready?.arrayBuffer();
    if (ready?.ok) return url;
    await sleep(50);
  }
}

async function listening(script: string, env: Record<string, string>): Promise<string> {
  const child = spawn(process.execPath, [script], {
    env: { ...process.env, NODE_ENV: 'production', ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.push(child);
  for await (const line of createInterface({ input: child.stdout })) {
    const [, port] = /^listening (\d+)$/.exec(line) ?? [];
    if (port !== undefined) return `http://127.0.0.1:${port}`;
  }
  throw new Error(`${script} did not start`);
}

async function residentMiB(): Promise<string> {
  const { readFile } = await import('node:fs/promises');
  const pid = children.at(-1)?.pid;
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const [, kib] = /VmRSS:\s+(\d+)/.exec(status) ?? [];
  return kib === undefined ? 'unknown' : (Number(kib) / 1024).toFixed(0);
}
