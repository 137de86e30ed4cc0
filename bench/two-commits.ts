import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { type Sample, summarizeSample } from './load.ts';

/** The lower bound of a call's cost: a claim and a settlement, one commit each, and nothing else. */
export interface TwoCommits {
  readonly name: string;
  run(total: number, atOnce: number): Promise<Sample>;
}

const TABLE = 'create table two_commits (id uuid primary key, state text not null, request text not null, answer text)';
const CLAIM = `insert into two_commits values (gen_random_uuid(), 'claimed', $1) returning id`;
const SETTLE = `update two_commits set state = 'settled', answer = $2 where id = $1`;
const PAYLOAD = 'y'.repeat(1000);

const execute = promisify(execFile);

export async function prepareTwoCommits(databaseUrl: string, home: string): Promise<TwoCommits> {
  const admin = new pg.Client({ connectionString: databaseUrl });
  await admin.connect();
  await admin.query(TABLE).finally(() => admin.end());
  const hasPgbench = await execute('pgbench', ['--version']).then(Boolean, () => false);
  return hasPgbench
    ? { name: 'pgbench, the two commits', run: (total, atOnce) => runWithPgbench(databaseUrl, home, total, atOnce) }
    : { name: 'pg, one statement a commit', run: (total, atOnce) => runWithPg(databaseUrl, total, atOnce) };
}

async function runWithPgbench(databaseUrl: string, home: string, total: number, atOnce: number): Promise<Sample> {
  const directory = await mkdtemp(join(home, 'pgbench-'));
  const script = join(directory, 'two-commits.sql');
  const claim = CLAIM.replace('$1', ':payload');
  const settle = SETTLE.replace('$1', ':id::uuid').replace('$2', ':payload');
  await writeFile(script, `${claim} \\gset\n${settle};\n`);
  const each = Math.ceil(total / atOnce);
  const threads = Math.min(2, atOnce);
  const shape = ['-n', '-M', 'prepared', '-c', `${atOnce}`, '-j', `${threads}`, '-t', `${each}`];
  const log = ['-l', `--log-prefix=${join(directory, 'log')}`];
  const { stdout } = await execute('pgbench', [
    ...shape,
    ...log,
    '-D',
    `payload=${PAYLOAD}`,
    '-f',
    script,
    databaseUrl,
  ]);
  const [, perSecond] = /^tps = ([\d.]+) \(without/m.exec(stdout) ?? [];
  if (perSecond === undefined || !/number of failed transactions: 0 /.test(stdout)) throw new Error(stdout);
  const times: number[] = [];
  for (const file of (await readdir(directory)).filter((name) => name.startsWith('log'))) {
    const lines = (await readFile(join(directory, file), 'utf8')).trim().split('\n');
    for (const line of lines) times.push(Number(line.split(' ')[2]) / 1000);
  }
  return summarizeSample(times, Number(perSecond));
}

/** The same statements without pgbench, with one connection for each call in flight. */
async function runWithPg(databaseUrl: string, total: number, atOnce: number): Promise<Sample> {
  const clients = Array.from({ length: atOnce }, () => new pg.Client({ connectionString: databaseUrl }));
  await Promise.all(clients.map((client) => client.connect()));
  const times: number[] = [];
  let next = 0;
  const started = performance.now();
  const worker = async (client: pg.Client) => {
    while (next++ < total) {
      const startedAt = performance.now();
      const claimed = await client.query({ name: 'claim', text: CLAIM, values: [PAYLOAD] });
      await client.query({ name: 'settle', text: SETTLE, values: [claimed.rows[0].id, PAYLOAD] });
      times.push(performance.now() - startedAt);
    }
  };
  await Promise.all(clients.map(worker));
  const seconds = (performance.now() - started) / 1000;
  await Promise.all(clients.map((client) => client.end()));
  return summarizeSample(times, total / seconds);
}
