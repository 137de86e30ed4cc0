import { type ChildProcess, spawn } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import { hashLeaf } from '../../gateway/domain/audit/audit.ts';
import { Frontier } from '../../gateway/domain/audit/merkle.ts';
import { NoteSigner, NoteVerifier } from '../../gateway/domain/audit/signed-note.ts';
import type { Random } from './mutations.ts';

export interface KillSealersOptions {
  readonly databaseUrl: string;
  /** An empty directory. */
  readonly home: string;
  readonly kills: number;
  readonly random: Random;
  readonly progress?: (kills: number) => void;
}

const KILL_POINTS = ['sealing', 'sealed', 'anchored', '', '', ''];

/**
 * Two processes seal one log while entries arrive. They are killed again and again, at kill points and at random moments. Then
 * every entry must be in the log once, and every signed checkpoint must match the log. Returns the faults.
 */
export async function killSealers(options: KillSealersOptions): Promise<string[]> {
  const { databaseUrl, home, kills, random } = options;
  const keyFile = join(home, 'audit.key');
  const { privateKey } = generateKeyPairSync('ed25519');
  await writeFile(keyFile, privateKey.export({ type: 'pkcs8', format: 'pem' }));
  const key = new NoteSigner('test/killed', privateKey);
  const faults: string[] = [];
  const start = (dieAt: string) => startSealer([databaseUrl, key.name, keyFile, join(home, 'kept'), dieAt], faults);
  const writer = writeLeaves(databaseUrl);
  const slots = [await start(''), await start('')];
  for (let killed = 0; killed < kills && faults.length === 0; killed++) {
    const slot = killed % 2;
    const dieAt = KILL_POINTS[Math.floor(random() * KILL_POINTS.length)] ?? '';
    await killProcess(slots[slot] as ChildProcess);
    const next = await start(dieAt);
    slots[slot] = next;
    if (dieAt === '') await sleep(random() * 120);
    else await Promise.race([once(next, 'exit'), sleep(2_000)]);
    options.progress?.(killed + 1);
  }
  for (const slot of slots) await killProcess(slot as ChildProcess);
  const written = await writer.stop();
  const last = await start('');
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  const isEntryWaiting = async () => (await client.query('select 1 from audit_queue limit 1')).rows.length > 0;
  for (let left = 2_400; left > 0 && (await isEntryWaiting()); left--) await sleep(50);
  await killProcess(last);
  faults.push(...(await findLogFaults(client, new NoteVerifier(key.verifier), written, join(home, 'kept'))));
  await client.end();
  return faults;
}

/** A busy database may refuse a few starts. A sealer that never starts is a fault of the test. */
const MAX_START_TRIES = 20;

async function startSealer(argv: readonly string[], faults: string[], tries = 1): Promise<ChildProcess> {
  const child = spawn(process.execPath, [resolve('dist/test/audit/sealer.js'), ...argv], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stderr = '';
  child.stderr?.on('data', (chunk) => {
    stderr = `${stderr}${chunk}`.slice(-4_000);
  });
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
  const ready = new Promise<void>((done) => {
    lines.on('line', (line) => {
      if (line.startsWith('error')) faults.push(line);
      if (line === 'ready') done();
    });
  });
  const [code] = (await Promise.race([ready.then(() => []), once(child, 'exit')])) as [number?];
  if (code !== 1) return child;
  if (tries === MAX_START_TRIES) throw new Error(`The sealer does not start: ${stderr}`);
  return startSealer(argv, faults, tries + 1);
}

async function killProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGKILL');
  await once(child, 'exit');
}

/** Writes entries until it is stopped, some of them in transactions that commit late. */
function writeLeaves(databaseUrl: string) {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: 4 });
  let isStopped = false;
  let count = 0;
  const write = async (isLate: boolean) => {
    const client = await pool.connect();
    while (!isStopped) {
      const entries = Array.from({ length: 20 }, () => `{"leaf":${count++}}`);
      await client.query('begin');
      await client.query('insert into audit_queue (entry) select unnest($1::text[])', [entries]);
      if (isLate) await sleep(200);
      await client.query('commit');
      await sleep(20);
    }
    client.release();
  };
  const writers = Promise.all([write(false), write(false), write(true)]);
  return {
    stop: async () => {
      isStopped = true;
      await writers;
      await pool.end();
      return count;
    },
  };
}

async function findLogFaults(
  client: pg.Client,
  log: NoteVerifier,
  written: number,
  directory: string,
): Promise<string[]> {
  const faults: string[] = [];
  const { rows } = await client.query<{ index: string; entry: string; leaf: Buffer; note: string | null }>(
    'select l.index, l.entry, l.leaf, c.note from audit_log l left join audit_checkpoints c on c.size = l.index + 1 order by index',
  );
  const frontier = new Frontier();
  const seen = new Set<string>();
  for (const { index, entry, leaf, note } of rows) {
    if (Number(index) !== frontier.size) faults.push(`entry ${frontier.size} is missing`);
    if (!leaf.equals(hashLeaf(entry))) faults.push(`entry ${index} does not match its hash`);
    if (seen.has(entry)) faults.push(`${entry} is in the log twice`);
    seen.add(entry);
    frontier.append(leaf);
    if (note !== null && !log.verifyCheckpoint(note).root.equals(frontier.computeRoot()))
      faults.push(`checkpoint ${frontier.size} does not match the log`);
  }
  const { rowCount: left } = await client.query('select 1 from audit_queue');
  if (seen.size !== written || left !== 0)
    faults.push(`${written} entries were written, ${seen.size} are in the log, ${left} still wait`);
  const newest = rows.at(-1)?.note;
  if (newest === null || newest === undefined) faults.push('no checkpoint covers the last entry');
  const anchored = log.verifyCheckpoint((await new CheckpointFiles(directory).readNewest()) ?? '');
  if (anchored.size > frontier.size)
    faults.push(`the anchor covers ${anchored.size} entries, but the log has ${frontier.size}`);
  return faults;
}
