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
 * One server per data directory, shared by every gateway that uses the directory. No gateway owns the server: each reads
 * `postmaster.pid` and acts on its state.
 *
 *   no live server          -> start one (PostgreSQL's own lock file lets one of two win), read again
 *   starting or stopping    -> read again
 *   ready                   -> open a presence connection and pass the gate: joined
 *
 * A presence connection is named oncegate-embedded-…; while it exists, its gateway counts as a user of the server. The gate is an
 * advisory lock. A leaving gateway takes the gate and counts the other presence connections. If there are none, it stops the
 * server while it holds the gate. A joining gateway passes the gate after connecting. So a newcomer is either counted, or loses
 * its connection at the gate and starts over.
 */

/** The membership of this gateway among the users of the server. */
export interface ServerSession {
  readonly presence: pg.Client;
  readonly port: number;
  readonly pid: number;
  readonly started: boolean;
}

const PRESENCE_NAME_PREFIX = 'oncegate-embedded-';
const GATE_ADVISORY_LOCK = '1868784485, 1';
const POLL_MS = 25;
/** Backends that outlive a killed postmaster hold its shared memory until they notice its death. */
const MAX_CONTENTION_MS = 10_000;
/** Crash recovery replays at most a few checkpoints, so a longer start means a fault. */
const START_TIMEOUT_MS = 120_000;

const CONTENDED_PATTERN = /lock file "postmaster\.pid" (already exists|is empty)|pre-existing shared memory block/;
const PORT_TAKEN_PATTERN = /could not create any TCP\/IP sockets/;

/** Joins the server of this data directory, or starts it. With `port`, starts it only there: clients already use that URL. */
export async function joinOrStartServer(
  cluster: Cluster,
  name: string,
  port?: number,
  signal?: AbortSignal,
): Promise<ServerSession> {
  const startedAt = Date.now();
  let child: PostgresProcess | undefined;
  let contendedSince: number | undefined;
  let isPortTaken = false;
  let isWaitLogged = false;
  for (;;) {
    // Once a server is spawned, the loop runs to its end: an abandoned server would keep running, and no gateway would stop it.
    if (!child) signal?.throwIfAborted();
    const lock = await readPostmasterPid(cluster);
    if (lock && identifyPid(lock.pid, cluster) === 'server') {
      const presence = await openPresenceClient(cluster, lock, name);
      if (presence) return { presence, port: lock.port, pid: lock.pid, started: child?.process.pid === lock.pid };
    } else if (!child) {
      if (lock) await invalidateStaleLock(cluster);
      // Reuses the port of a killed server, because its other gateways still connect to it.
      const last = isPortTaken ? undefined : lock?.port;
      child = await spawnServer(cluster, port ?? (last || (await findFreePort())));
    } else if (child.ended) {
      const log = await child.readLog();
      isPortTaken = PORT_TAKEN_PATTERN.test(log);
      const isContended = CONTENDED_PATTERN.test(log);
      if (isContended) contendedSince ??= Date.now();
      const isTooLong = Date.now() - (contendedSince ?? Date.now()) > MAX_CONTENTION_MS;
      // Code 0: another gateway joined the server and, as the last to leave, stopped it before this one had joined.
      if (isTooLong || !(isPortTaken || isContended || child.ended === 'code 0')) {
        throw buildStartError(cluster, `${log}\n(ended with ${child.ended})`);
      }
      if (isContended || port) await delay(200);
      child = undefined;
    }
    if (!isWaitLogged && Date.now() - startedAt > 3_000) {
      cluster.log('waiting for PostgreSQL (after a crash, it recovers first)');
      isWaitLogged = true;
    }
    if (Date.now() - startedAt > START_TIMEOUT_MS) {
      child?.process.kill('SIGINT');
      throw buildStartError(cluster, `(it runs but does not answer after ${START_TIMEOUT_MS / 1000} s)`);
    }
    await delay(POLL_MS);
  }
}

/** Joins the server if it runs and answers. Does not start one. */
export async function joinServer(cluster: Cluster, name: string): Promise<ServerSession | 'absent' | 'unreachable'> {
  const lock = await readPostmasterPid(cluster);
  if (!lock || identifyPid(lock.pid, cluster) !== 'server') return 'absent';
  const presence = await openPresenceClient(cluster, lock, name);
  return presence ? { presence, port: lock.port, pid: lock.pid, started: false } : 'unreachable';
}

function buildStartError(cluster: Cluster, log: string): EmbeddedError {
  const isDiskFull = DISK_FULL_PATTERN.test(log);
  return new EmbeddedError(
    `PostgreSQL does not start in ${cluster.directory}${isDiskFull ? ': the disk is full' : ''}. It says:\n${log}\n` +
      `The whole log is in ${cluster.logFile}. Fix the cause, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
  );
}

/** Leaves the server. The last gateway to leave stops it. */
export async function leaveServer(
  cluster: Cluster,
  { presence, pid }: ServerSession,
): Promise<'stopped' | 'left running'> {
  await presence.query(`select pg_advisory_lock(${GATE_ADVISORY_LOCK})`);
  const { rows } = await presence.query<{ others: number }>(
    `select count(*)::int as others from pg_stat_activity
      where datname = current_database() and backend_type = 'client backend'
        and starts_with(application_name, $1) and pid <> pg_backend_pid()`,
    [PRESENCE_NAME_PREFIX],
  );
  if (rows[0]?.others !== 0) {
    // A closing session releases its locks before it leaves pg_stat_activity. Renamed, the next gateway to leave does not count it.
    await presence.query(`set application_name = 'oncegate-left'`);
    await presence.end();
    return 'left running';
  }
  await shutDownServer(cluster, pid);
  void presence.end().catch(() => {});
  return 'stopped';
}

/**
 * Stops the server with a fast shutdown, which closes connections and writes a checkpoint. After 20 s it stops without a
 * checkpoint; the next start then recovers.
 */
export async function shutDownServer(cluster: Cluster, pid: number): Promise<void> {
  const startedAt = Date.now();
  for (let sent: string | undefined; identifyPid(pid, cluster) === 'server'; await delay(10)) {
    const waited = Date.now() - startedAt;
    if (waited > 30_000) throw new EmbeddedError(`PostgreSQL (pid ${pid}) does not stop: see ${cluster.logFile}.`);
    const wanted = waited > 20_000 ? 'SIGQUIT' : 'SIGINT';
    try {
      if (sent !== wanted) process.kill(pid, wanted);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') {
        throw new EmbeddedError(`PostgreSQL (pid ${pid}) cannot be stopped: ${(error as Error).message}.`);
      }
    }
    sent = wanted;
  }
}

interface PostmasterPid {
  readonly pid: number;
  readonly port: number;
  readonly ready: boolean;
}

/** The fields of `postmaster.pid` that matter here: line 1 pid, line 4 port, line 8 status. */
async function readPostmasterPid(cluster: Cluster): Promise<PostmasterPid | undefined> {
  const text = await readFile(join(cluster.directory, 'postmaster.pid'), 'utf8').catch(
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return '';
      throw error;
    },
  );
  const lines = text.split('\n');
  const pid = Number.parseInt(lines[0] ?? '', 10);
  if (!(pid > 0)) return undefined;
  return { pid, port: Number.parseInt(lines[3] ?? '', 10) || 0, ready: lines[7]?.trim() === 'ready' };
}

/** What runs under this pid now. After a restart of the machine or container it is often another process or a thread. */
function identifyPid(pid: number, cluster: Cluster): 'server' | 'other' | 'none' {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return 'none';
  }
  if (process.platform !== 'linux') return 'server';
  try {
    const status = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The format is `pid (command) state …`. Dead processes stay in state Z if the first process of a container does not collect them.
    if (!/^\d+ \(postgres\) [^ZX]/.test(status)) return 'other';
  } catch {
    return 'none';
  }
  try {
    const [cwd, directory] = [statSync(`/proc/${pid}/cwd`), statSync(cluster.directory)];
    return cwd.dev === directory.dev && cwd.ino === directory.ino ? 'server' : 'other';
  } catch {
    return 'server'; // This user may not read its working directory; connecting to it will show.
  }
}

/**
 * Makes a stale lock file harmless. PostgreSQL takes any process of its user with the pid in the file for a running server, and
 * would refuse to start for ever. This writes a pid that cannot exist, and PostgreSQL does the rest of its checks. It uses one
 * file handle: if another start has replaced the file meanwhile, only the old file is changed.
 */
async function invalidateStaleLock(cluster: Cluster): Promise<void> {
  let file: FileHandle | undefined;
  try {
    file = await open(join(cluster.directory, 'postmaster.pid'), 'r+');
    const [first = '', ...rest] = (await file.readFile('utf8')).split('\n');
    if (identifyPid(Number.parseInt(first, 10), cluster) !== 'other') return;
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

/** Opens the presence connection and passes the gate. Undefined if the server is starting, stopping, or has just ended. */
async function openPresenceClient(
  cluster: Cluster,
  { port, ready }: PostmasterPid,
  name: string,
): Promise<pg.Client | undefined> {
  if (!ready || !port) return undefined;
  const presence = buildClient(cluster, port, 'oncegate', `${PRESENCE_NAME_PREFIX}${name}`);
  try {
    await presence.connect();
    await presence.query(`select pg_advisory_lock_shared(${GATE_ADVISORY_LOCK})`);
    await presence.query(`select pg_advisory_unlock_shared(${GATE_ADVISORY_LOCK})`);
    return presence;
  } catch (error) {
    void presence.end().catch(() => {});
    const { code = '' } = error as { code?: string };
    if (code === '3D000') await createDatabase(cluster, port);
    if (code.startsWith('28')) {
      throw new EmbeddedError(
        `The server running on ${cluster.directory} (127.0.0.1:${port}) does not accept the password kept there ` +
          `(${(error as Error).message}): stop it and put the password back, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
      );
    }
    return undefined;
  }
}

/** Creates the database of the gateway. Ignores most errors: the next attempt to connect shows whether the database exists. */
async function createDatabase(cluster: Cluster, port: number): Promise<void> {
  const client = buildClient(cluster, port, 'postgres', 'oncegate-setup');
  try {
    await client.connect();
    await client.query('create database oncegate template template0');
  } catch (error) {
    const { code = '' } = error as { code?: string };
    if (code.startsWith('53')) throw buildStartError(cluster, (error as Error).message);
  } finally {
    void client.end().catch(() => {});
  }
}

function buildClient(cluster: Cluster, port: number, database: string, name: string): pg.Client {
  const client = new pg.Client({
    host: '127.0.0.1',
    port,
    user: 'oncegate',
    password: cluster.password,
    database,
    ssl: false,
    application_name: name,
    connectionTimeoutMillis: 5_000,
    statement_timeout: 15_000,
  });
  // A killed server must not end the gateway. The event 'end' reports the loss.
  client.on('error', () => {});
  return client;
}
