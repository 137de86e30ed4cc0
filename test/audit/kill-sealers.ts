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
 * Two processes seal one log while leaves come in, and are killed again and again, at named points and at any. Then the log
 * must be one: every leaf once, every checkpoint ever signed a true beginning of it. Tells what is not so, as sentences.
 */
export async function killSealers(killing: KillSealersOptions): Promise<string[]> {
  const { databaseUrl, home, kills, random } = killing;
  const keyFile = join(home, 'audit.key');
  const { privateKey } = generateKeyPairSync('ed25519');
  await writeFile(keyFile, privateKey.export({ type: 'pkcs8', format: 'pem' }));
  const key = new NoteSigner('test/killed', privateKey);
  const found: string[] = [];
  const start = (dieAt: string) => startSealer([databaseUrl, key.name, keyFile, join(home, 'kept'), dieAt], found);
  const writer = writeLeaves(databaseUrl);
  const slots = [await start(''), await start('')];
  for (let killed = 0; killed < kills && found.length === 0; killed++) {
    const slot = killed % 2;
    const dieAt = KILL_POINTS[Math.floor(random() * KILL_POINTS.length)] ?? '';
    await killProcess(slots[slot] as ChildProcess);
    const next = await start(dieAt);
    slots[slot] = next;
    if (dieAt === '') await sleep(random() * 120);
    else await Promise.race([once(next, 'exit'), sleep(2_000)]);
    killing.progress?.(killed + 1);
  }
  for (const slot of slots) await killProcess(slot as ChildProcess);
  const written = await writer.stop();
  const last = await start('');
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  const waiting = async () => (await client.query('select 1 from audit_queue limit 1')).rows.length > 0;
  for (let left = 2_400; left > 0 && (await waiting()); left--) await sleep(50);
  await killProcess(last);
  found.push(...(await findLogFaults(client, new NoteVerifier(key.verifier), written, join(home, 'kept'))));
  await client.end();
  return found;
}

/** A busy database may refuse a few starts; a sealer that never starts is a fault of the test, and its error says why. */
const MAX_START_TRIES = 20;

async function startSealer(argv: readonly string[], found: string[], tries = 1): Promise<ChildProcess> {
  const child = spawn(process.execPath, [resolve('test/audit/sealer.mjs'), ...argv], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stderr = '';
  child.stderr?.on('data', (chunk) => {
    stderr = `${stderr}${chunk}`.slice(-4_000);
  });
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
  const ready = new Promise<void>((done) => {
    lines.on('line', (line) => {
      if (line.startsWith('error')) found.push(line);
      if (line === 'ready') done();
    });
  });
  const [code] = (await Promise.race([ready.then(() => []), once(child, 'exit')])) as [number?];
  if (code !== 1) return child;
  if (tries === MAX_START_TRIES) throw new Error(`The sealer does not start: ${stderr}`);
  return startSealer(argv, found, tries + 1);
}

async function killProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGKILL');
  await once(child, 'exit');
}

/** Leaves as they come in, some in transactions that commit late. */
function writeLeaves(databaseUrl: string) {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: 4 });
  let stopped = false;
  let count = 0;
  const work = async (late: boolean) => {
    const client = await pool.connect();
    while (!stopped) {
      const entries = Array.from({ length: 20 }, () => `{"leaf":${count++}}`);
      await client.query('begin');
      await client.query('insert into audit_queue (entry) select unnest($1::text[])', [entries]);
      if (late) await sleep(200);
      await client.query('commit');
      await sleep(20);
    }
    client.release();
  };
  const working = Promise.all([work(false), work(false), work(true)]);
  return {
    stop: async () => {
      stopped = true;
      await working;
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
    if (!leaf.equals(hashLeaf(entry))) faults.push(`entry ${index} is not what was hashed`);
    if (seen.has(entry)) faults.push(`${entry} is there twice`);
    seen.add(entry);
    frontier.append(leaf);
    if (note !== null && !log.verifyCheckpoint(note).root.equals(frontier.computeRoot()))
      faults.push(`checkpoint ${frontier.size} is of another log`);
  }
  const { rowCount: left } = await client.query('select 1 from audit_queue');
  if (seen.size !== written || left !== 0)
    faults.push(`${written} leaves were written, ${seen.size} are in the log, ${left} still wait`);
  const newest = rows.at(-1)?.note;
  if (newest === null || newest === undefined) faults.push('the last entry is under no checkpoint');
  const kept = log.verifyCheckpoint((await new CheckpointFiles(directory).readNewest()) ?? '');
  if (kept.size > frontier.size) faults.push(`${kept.size} entries were vouched for, there are ${frontier.size}`);
  return faults;
}
