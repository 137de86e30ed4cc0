import { readFileSync, statSync } from 'node:fs';
import { type FileHandle, open, readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { type Child, DISK_FULL, ELSEWHERE, EmbeddedError, type Home, spawnServer } from './embedded-binaries.ts';

/*
 * One server per data directory, shared by every gateway that uses it. Nobody owns it: each gateway looks at
 * `postmaster.pid` and does what it finds there.
 *
 *   no live server          -> start one (PostgreSQL's own lock file lets one of two win), look again
 *   starting or stopping    -> look again
 *   ready                   -> hold a keeper connection and pass the gate: in
 *
 * A keeper is a connection named oncegate-embedded-…; while it lives its gateway counts as a user. The gate is an advisory
 * lock. Who leaves takes it, counts the other keepers and, being the last, shuts the server down without giving it back;
 * who comes passes it after connecting. So a newcomer is either counted, or cut off at the gate and starts over.
 */

export interface Reached {
  readonly keeper: pg.Client;
  readonly port: number;
  readonly pid: number;
  readonly started: boolean;
}

const KEEPER = 'oncegate-embedded-';
const GATE = '1868784485, 1';
const LOOK_MS = 25;
/** Backends that outlive a killed postmaster hold its shared memory until they notice. */
const CONTENTION_MS = 10_000;
/** Crash recovery replays at most a few checkpoints; longer means that something is wrong. */
const PATIENCE_MS = 120_000;

const CONTENDED = /lock file "postmaster\.pid" (already exists|is empty)|pre-existing shared memory block/;
const PORT_TAKEN = /could not create any TCP\/IP sockets/;

/** Joins the server of this data directory, or starts it. With `port`, only there: the URL has already been given out. */
export async function reachServer(home: Home, name: string, port?: number, signal?: AbortSignal): Promise<Reached> {
  const began = Date.now();
  let child: Child | undefined;
  let contendedSince: number | undefined;
  let portTaken = false;
  let told = false;
  for (;;) {
    // What has been started is seen through: given up half-way it would be left running with nobody to stop it.
    if (!child) signal?.throwIfAborted();
    const lock = await readLock(home);
    if (lock && occupant(lock.pid, home) === 'server') {
      const keeper = await openKeeper(home, lock, name);
      if (keeper) return { keeper, port: lock.port, pid: lock.pid, started: child?.process.pid === lock.pid };
    } else if (!child) {
      if (lock) await disownLock(home);
      // The port of a server that was killed is the one its other users still try.
      const last = portTaken ? undefined : lock?.port;
      child = await spawnServer(home, port ?? (last || (await freePort())));
    } else if (child.ended) {
      const said = await child.said();
      portTaken = PORT_TAKEN.test(said);
      const contended = CONTENDED.test(said);
      if (contended) contendedSince ??= Date.now();
      const tooLong = Date.now() - (contendedSince ?? Date.now()) > CONTENTION_MS;
      // Code 0: another gateway joined it, left as the last, and so stopped it before we were in.
      if (tooLong || !(portTaken || contended || child.ended === 'code 0')) {
        throw failedStart(home, `${said}\n(ended with ${child.ended})`);
      }
      if (contended || port) await delay(200);
      child = undefined;
    }
    if (!told && Date.now() - began > 3_000) {
      home.log('waiting for PostgreSQL (after a crash it repairs itself first)');
      told = true;
    }
    if (Date.now() - began > PATIENCE_MS) {
      child?.process.kill('SIGINT');
      throw failedStart(home, `(it runs and does not answer after ${PATIENCE_MS / 1000} s)`);
    }
    await delay(LOOK_MS);
  }
}

/** Joins the server if there is one that answers now; starts none. */
export async function joinServer(home: Home, name: string): Promise<Reached | 'absent' | 'unreachable'> {
  const lock = await readLock(home);
  if (!lock || occupant(lock.pid, home) !== 'server') return 'absent';
  const keeper = await openKeeper(home, lock, name);
  return keeper ? { keeper, port: lock.port, pid: lock.pid, started: false } : 'unreachable';
}

function failedStart(home: Home, said: string): EmbeddedError {
  const full = DISK_FULL.test(said);
  return new EmbeddedError(
    `PostgreSQL does not start in ${home.directory}${full ? ': the disk is full' : ''}. It says:\n${said}\n` +
      `The whole log is in ${home.logFile}. Mend that, choose another ONCEGATE_DATA_DIR, or ${ELSEWHERE}.`,
  );
}

/** Leaves the server; the last to leave shuts it down. */
export async function leaveServer(home: Home, { keeper, pid }: Reached): Promise<'stopped' | 'left running'> {
  await keeper.query(`select pg_advisory_lock(${GATE})`);
  const { rows } = await keeper.query<{ others: number }>(
    `select count(*)::int as others from pg_stat_activity
      where datname = current_database() and backend_type = 'client backend'
        and starts_with(application_name, $1) and pid <> pg_backend_pid()`,
    [KEEPER],
  );
  if (rows[0]?.others !== 0) {
    // A session gives its locks back before it vanishes from the list, and the next to leave would still count it.
    await keeper.query(`set application_name = 'oncegate-left'`);
    await keeper.end();
    return 'left running';
  }
  await shutDown(home, pid);
  void keeper.end().catch(() => {});
  return 'stopped';
}

/** Fast shutdown: connections are cut, a checkpoint is written. One that takes too long is left to the next start. */
export async function shutDown(home: Home, pid: number): Promise<void> {
  const began = Date.now();
  for (let sent: string | undefined; occupant(pid, home) === 'server'; await delay(10)) {
    const waited = Date.now() - began;
    if (waited > 30_000) throw new EmbeddedError(`PostgreSQL (pid ${pid}) does not stop: see ${home.logFile}.`);
    const due = waited > 20_000 ? 'SIGQUIT' : 'SIGINT';
    try {
      if (sent !== due) process.kill(pid, due);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') {
        throw new EmbeddedError(`PostgreSQL (pid ${pid}) cannot be stopped: ${(error as Error).message}.`);
      }
    }
    sent = due;
  }
}

interface Lock {
  readonly pid: number;
  readonly port: number;
  readonly ready: boolean;
}

/** The fields of `postmaster.pid` that matter here: line 1 pid, line 4 port, line 8 status. */
async function readLock(home: Home): Promise<Lock | undefined> {
  const text = await readFile(join(home.directory, 'postmaster.pid'), 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return '';
    throw error;
  });
  const lines = text.split('\n');
  const pid = Number.parseInt(lines[0] ?? '', 10);
  if (!(pid > 0)) return undefined;
  return { pid, port: Number.parseInt(lines[3] ?? '', 10) || 0, ready: lines[7]?.trim() === 'ready' };
}

/** Who has this pid now. After a restart of the machine or container it is often somebody else's, or a thread's. */
function occupant(pid: number, home: Home): 'server' | 'stranger' | 'nobody' {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return 'nobody';
  }
  if (process.platform !== 'linux') return 'server';
  try {
    const status = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // `pid (command) state …`; dead ones stay in state Z where the container's first process does not collect them.
    if (!/^\d+ \(postgres\) [^ZX]/.test(status)) return 'stranger';
  } catch {
    return 'nobody';
  }
  try {
    const [its, ours] = [statSync(`/proc/${pid}/cwd`), statSync(home.directory)];
    return its.dev === ours.dev && its.ino === ours.ino ? 'server' : 'stranger';
  } catch {
    return 'server'; // not ours to look at: its answer, or its silence, will tell
  }
}

/**
 * PostgreSQL takes any process of its user under the pid in a left-over lock file for a running server, and would refuse for
 * ever. Writes a pid there that cannot exist and leaves the rest of its checks to it. Through one file handle: should
 * another start have replaced the file meanwhile, only the dead one is written.
 */
async function disownLock(home: Home): Promise<void> {
  let file: FileHandle | undefined;
  try {
    file = await open(join(home.directory, 'postmaster.pid'), 'r+');
    const [first = '', ...rest] = (await file.readFile('utf8')).split('\n');
    if (occupant(Number.parseInt(first, 10), home) !== 'stranger') return;
    const text = ['2147483646', ...rest].join('\n');
    await file.write(text, 0);
    await file.truncate(Buffer.byteLength(text));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  } finally {
    await file?.close();
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().on('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address ? address.port : 0));
    });
  });
}

/** Undefined when the server is not to be had just now: still starting, already stopping, or gone while we spoke. */
async function openKeeper(home: Home, { port, ready }: Lock, name: string): Promise<pg.Client | undefined> {
  if (!ready || !port) return undefined;
  const keeper = clientOf(home, port, 'oncegate', `${KEEPER}${name}`);
  try {
    await keeper.connect();
    await keeper.query(`select pg_advisory_lock_shared(${GATE})`);
    await keeper.query(`select pg_advisory_unlock_shared(${GATE})`);
    return keeper;
  } catch (error) {
    void keeper.end().catch(() => {});
    const { code = '' } = error as { code?: string };
    if (code === '3D000') await createDatabase(home, port);
    if (code.startsWith('28')) {
      throw new EmbeddedError(
        `The server running on ${home.directory} (127.0.0.1:${port}) does not accept the password kept there ` +
          `(${(error as Error).message}): stop it and put the password back, choose another ONCEGATE_DATA_DIR, or ${ELSEWHERE}.`,
      );
    }
    return undefined;
  }
}

/** Whether this made it, another did, or the server went away, is seen at the next look. */
async function createDatabase(home: Home, port: number): Promise<void> {
  const client = clientOf(home, port, 'postgres', 'oncegate-setup');
  try {
    await client.connect();
    await client.query('create database oncegate template template0');
  } catch (error) {
    const { code = '' } = error as { code?: string };
    if (code.startsWith('53')) throw failedStart(home, (error as Error).message);
  } finally {
    void client.end().catch(() => {});
  }
}

function clientOf(home: Home, port: number, database: string, name: string): pg.Client {
  const client = new pg.Client({
    host: '127.0.0.1',
    port,
    user: 'oncegate',
    password: home.password,
    database,
    ssl: false,
    application_name: name,
    connectionTimeoutMillis: 5_000,
    statement_timeout: 15_000,
  });
  // A killed server must not kill the gateway; losses are told by 'end'.
  client.on('error', () => {});
  return client;
}
