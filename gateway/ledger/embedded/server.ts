import { readFileSync, statSync } from 'node:fs';
import { type FileHandle, open, readFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import {
  type Cluster,
  DISK_FULL_PATTERN,
  EmbeddedError,
  type PostgresProcess,
  spawnServer,
  USE_OWN_SERVER_HINT,
} from './binaries.ts';

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

export interface ServerSession {
  readonly presence: pg.Client;
  readonly port: number;
  readonly pid: number;
  readonly started: boolean;
}

const PRESENCE_NAME_PREFIX = 'oncegate-embedded-';
const GATE_ADVISORY_LOCK = '1868784485, 1';
const POLL_MS = 25;
/** Backends that outlive a killed postmaster hold its shared memory until they notice. */
const MAX_CONTENTION_MS = 10_000;
/** Crash recovery replays at most a few checkpoints; longer means that something is wrong. */
const START_TIMEOUT_MS = 120_000;

const CONTENDED_PATTERN = /lock file "postmaster\.pid" (already exists|is empty)|pre-existing shared memory block/;
const PORT_TAKEN_PATTERN = /could not create any TCP\/IP sockets/;

/** Joins the server of this data directory, or starts it. With `port`, only there: the URL has already been given out. */
export async function joinOrStartServer(
  home: Cluster,
  name: string,
  port?: number,
  signal?: AbortSignal,
): Promise<ServerSession> {
  const began = Date.now();
  let child: PostgresProcess | undefined;
  let contendedSince: number | undefined;
  let portTaken = false;
  let told = false;
  for (;;) {
    // What has been started is seen through: given up half-way it would be left running with nobody to stop it.
    if (!child) signal?.throwIfAborted();
    const lock = await readPostmasterPid(home);
    if (lock && identifyPid(lock.pid, home) === 'server') {
      const keeper = await openPresenceClient(home, lock, name);
      if (keeper) return { presence: keeper, port: lock.port, pid: lock.pid, started: child?.process.pid === lock.pid };
    } else if (!child) {
      if (lock) await invalidateStaleLock(home);
      // The port of a server that was killed is the one its other users still try.
      const last = portTaken ? undefined : lock?.port;
      child = await spawnServer(home, port ?? (last || (await findFreePort())));
    } else if (child.ended) {
      const said = await child.readLog();
      portTaken = PORT_TAKEN_PATTERN.test(said);
      const contended = CONTENDED_PATTERN.test(said);
      if (contended) contendedSince ??= Date.now();
      const tooLong = Date.now() - (contendedSince ?? Date.now()) > MAX_CONTENTION_MS;
      // Code 0: another gateway joined it, left as the last, and so stopped it before we were in.
      if (tooLong || !(portTaken || contended || child.ended === 'code 0')) {
        throw buildStartError(home, `${said}\n(ended with ${child.ended})`);
      }
      if (contended || port) await delay(200);
      child = undefined;
    }
    if (!told && Date.now() - began > 3_000) {
      home.log('waiting for PostgreSQL (after a crash it repairs itself first)');
      told = true;
    }
    if (Date.now() - began > START_TIMEOUT_MS) {
      child?.process.kill('SIGINT');
      throw buildStartError(home, `(it runs and does not answer after ${START_TIMEOUT_MS / 1000} s)`);
    }
    await delay(POLL_MS);
  }
}

/** Joins the server if there is one that answers now; starts none. */
export async function joinServer(home: Cluster, name: string): Promise<ServerSession | 'absent' | 'unreachable'> {
  const lock = await readPostmasterPid(home);
  if (!lock || identifyPid(lock.pid, home) !== 'server') return 'absent';
  const keeper = await openPresenceClient(home, lock, name);
  return keeper ? { presence: keeper, port: lock.port, pid: lock.pid, started: false } : 'unreachable';
}

function buildStartError(home: Cluster, said: string): EmbeddedError {
  const full = DISK_FULL_PATTERN.test(said);
  return new EmbeddedError(
    `PostgreSQL does not start in ${home.directory}${full ? ': the disk is full' : ''}. It says:\n${said}\n` +
      `The whole log is in ${home.logFile}. Mend that, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
  );
}

/** Leaves the server; the last to leave shuts it down. */
export async function leaveServer(
  home: Cluster,
  { presence: keeper, pid }: ServerSession,
): Promise<'stopped' | 'left running'> {
  await keeper.query(`select pg_advisory_lock(${GATE_ADVISORY_LOCK})`);
  const { rows } = await keeper.query<{ others: number }>(
    `select count(*)::int as others from pg_stat_activity
      where datname = current_database() and backend_type = 'client backend'
        and starts_with(application_name, $1) and pid <> pg_backend_pid()`,
    [PRESENCE_NAME_PREFIX],
  );
  if (rows[0]?.others !== 0) {
    // A session gives its locks back before it vanishes from the list, and the next to leave would still count it.
    await keeper.query(`set application_name = 'oncegate-left'`);
    await keeper.end();
    return 'left running';
  }
  await shutDownServer(home, pid);
  void keeper.end().catch(() => {});
  return 'stopped';
}

/** Fast shutdown: connections are cut, a checkpoint is written. One that takes too long is left to the next start. */
export async function shutDownServer(home: Cluster, pid: number): Promise<void> {
  const began = Date.now();
  for (let sent: string | undefined; identifyPid(pid, home) === 'server'; await delay(10)) {
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

interface PostmasterPid {
  readonly pid: number;
  readonly port: number;
  readonly ready: boolean;
}

/** The fields of `postmaster.pid` that matter here: line 1 pid, line 4 port, line 8 status. */
async function readPostmasterPid(home: Cluster): Promise<PostmasterPid | undefined> {
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
function identifyPid(pid: number, home: Cluster): 'server' | 'stranger' | 'nobody' {
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
async function invalidateStaleLock(home: Cluster): Promise<void> {
  let file: FileHandle | undefined;
  try {
    file = await open(join(home.directory, 'postmaster.pid'), 'r+');
    const [first = '', ...rest] = (await file.readFile('utf8')).split('\n');
    if (identifyPid(Number.parseInt(first, 10), home) !== 'stranger') return;
    const text = ['2147483646', ...rest].join('\n');
    await file.write(text, 0);
    await file.truncate(Buffer.byteLength(text));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
  } finally {
    await file?.close();
  }
}

function findFreePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().on('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address ? address.port : 0));
    });
  });
}

/** Undefined when the server is not to be had just now: still starting, already stopping, or gone while we spoke. */
async function openPresenceClient(
  home: Cluster,
  { port, ready }: PostmasterPid,
  name: string,
): Promise<pg.Client | undefined> {
  if (!ready || !port) return undefined;
  const keeper = buildClient(home, port, 'oncegate', `${PRESENCE_NAME_PREFIX}${name}`);
  try {
    await keeper.connect();
    await keeper.query(`select pg_advisory_lock_shared(${GATE_ADVISORY_LOCK})`);
    await keeper.query(`select pg_advisory_unlock_shared(${GATE_ADVISORY_LOCK})`);
    return keeper;
  } catch (error) {
    void keeper.end().catch(() => {});
    const { code = '' } = error as { code?: string };
    if (code === '3D000') await createDatabase(home, port);
    if (code.startsWith('28')) {
      throw new EmbeddedError(
        `The server running on ${home.directory} (127.0.0.1:${port}) does not accept the password kept there ` +
          `(${(error as Error).message}): stop it and put the password back, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
      );
    }
    return undefined;
  }
}

/** Whether this made it, another did, or the server went away, is seen at the next look. */
async function createDatabase(home: Cluster, port: number): Promise<void> {
  const client = buildClient(home, port, 'postgres', 'oncegate-setup');
  try {
    await client.connect();
    await client.query('create database oncegate template template0');
  } catch (error) {
    const { code = '' } = error as { code?: string };
    if (code.startsWith('53')) throw buildStartError(home, (error as Error).message);
  } finally {
    void client.end().catch(() => {});
  }
}

function buildClient(home: Cluster, port: number, database: string, name: string): pg.Client {
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
