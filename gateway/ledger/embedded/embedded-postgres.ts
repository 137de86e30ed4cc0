import { randomBytes } from 'node:crypto';
import { chmod, mkdir, open, readdir, readFile, realpath, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import {
  type Binaries,
  type Cluster,
  chooseServerUser,
  DISK_FULL_PATTERN,
  EmbeddedError,
  findBinaries,
  findClusterUser,
  runCommand,
  USE_OWN_SERVER_HINT,
} from './binaries.ts';
import { joinOrStartServer, joinServer, leaveServer, shutDownServer } from './server.ts';

export { EmbeddedError };

/** A real PostgreSQL under the data directory, for those who bring none: one server, shared by every gateway there. */
export interface EmbeddedPostgres {
  readonly url: string;
  /** Whether this process started the server or joined one that was already running. */
  readonly joined: boolean;
  /** Leaves the server; the last to leave stops it and waits until it is gone. */
  stop(): Promise<void>;
}

interface EmbeddedOptions {
  /** Absolute. The cluster is in `postgres/` below it, its password in `postgres/oncegate.password`. */
  readonly dataDir: string;
  readonly log: (message: string) => void;
}

export async function startEmbeddedPostgres({ dataDir, log }: EmbeddedOptions): Promise<EmbeddedPostgres> {
  try {
    await makeDataDir(dataDir);
    await removeAbandonedClusters(dataDir);
    const binaries = await findBinaries(dataDir);
    const directory = join(dataDir, 'postgres');
    if (!(await hasUsableCluster(directory, binaries.major))) {
      log(`making a new PostgreSQL ${binaries.major} cluster in ${directory}`);
      await makeCluster(dataDir, directory, binaries);
      await hasUsableCluster(directory, binaries.major); // of two first starts the other may have put its own there
    }
    const home: Cluster = {
      directory: await realpath(directory),
      logFile: join(dataDir, 'postgres.log'),
      binaries,
      user: await findClusterUser(directory),
      password: (await readFile(join(directory, PASSWORD_FILE), 'utf8')).trim(),
      log,
    };
    return await attachToServer(home);
  } catch (error) {
    throw toEmbeddedError(error, dataDir);
  }
}

/** Holds on to the server until `stop`, and brings it back when it dies under us. */
async function attachToServer(home: Cluster): Promise<EmbeddedPostgres> {
  const name = `${process.pid}-${randomBytes(4).toString('hex')}`;
  const { log } = home;
  const closing = new AbortController();
  let server = await joinOrStartServer(home, name);
  let reviving: Promise<void> | undefined;
  const { port, started } = server;
  log(
    `${started ? 'started' : 'joined'} PostgreSQL on 127.0.0.1:${port} (pid ${server.pid}, run by ${home.user.name})`,
  );

  const watch = () => {
    server.presence.once('end', () => {
      if (!closing.signal.aborted) reviving = revive();
    });
  };
  const revive = async (): Promise<void> => {
    log('lost the embedded PostgreSQL, bringing it back');
    while (!closing.signal.aborted) {
      try {
        server = await joinOrStartServer(home, name, port, closing.signal);
        watch();
        const moved = server.port === port ? '' : `, but on port ${server.port}: restart this gateway`;
        log(`the embedded PostgreSQL is back (pid ${server.pid})${moved}`);
        return;
      } catch (error) {
        if (closing.signal.aborted) return;
        log(`the embedded PostgreSQL does not come back, trying on: ${(error as Error).message}`);
        await delay(2_000, undefined, { signal: closing.signal }).catch(() => {});
      }
    }
  };
  const close = async (): Promise<void> => {
    closing.abort();
    await reviving;
    for (const until = Date.now() + 5_000; ; await delay(50)) {
      try {
        log(`PostgreSQL ${await leaveServer(home, server)}`);
        return;
      } catch (error) {
        if (error instanceof EmbeddedError) throw error;
      }
      // The keeper was lost: somebody has stopped or killed the server meanwhile. It must not be counted as another's.
      await Promise.race([server.presence.end().catch(() => {}), delay(1_000)]);
      const again = await joinServer(home, name).catch(() => 'absent' as const);
      if (again === 'absent') return;
      if (again !== 'unreachable') server = { ...again, started };
      else if (Date.now() > until) return server.started ? shutDownServer(home, server.pid) : undefined;
    }
  };

  watch();
  let closed: Promise<void> | undefined;
  return {
    // sslmode: the environment may ask for TLS (PGSSLMODE), which this server has not.
    url: `postgres://oncegate:${home.password}@127.0.0.1:${port}/oncegate?sslmode=disable`,
    joined: !started,
    stop: () => {
      closed ??= close();
      return closed;
    },
  };
}

const PASSWORD_FILE = 'oncegate.password';

/** Root opens it for passing through (not for listing): the user who will run PostgreSQL must get to the cluster in it. */
async function makeDataDir(dataDir: string): Promise<void> {
  const made = await mkdir(dataDir, { recursive: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
    return mkdir(dataDir).then(() => dataDir); // Node calls a read-only file system ENOENT when asked to recurse
  });
  if (made) await chmod(dataDir, process.getuid?.() === 0 ? 0o711 : 0o700);
}

/** Whether there is a cluster; refuses one that is not ours to run. */
async function hasUsableCluster(directory: string, major: number): Promise<boolean> {
  const found = await stat(directory).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (!found) return false;
  if (!found.isDirectory()) throw new EmbeddedError(`${directory} is a file: move it away, or ${USE_OWN_SERVER_HINT}.`);
  await findClusterUser(directory);
  const entries = await readdir(directory);
  if (entries.length === 0) return false;
  if (!entries.includes('PG_VERSION') || !entries.includes(PASSWORD_FILE)) {
    throw new EmbeddedError(
      `${directory} is not a cluster that Oncegate made (no ${entries.includes('PG_VERSION') ? PASSWORD_FILE : 'PG_VERSION'} ` +
        `in it): move it away, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
    );
  }
  const version = (await readFile(join(directory, 'PG_VERSION'), 'utf8')).trim();
  if (version !== `${major}`) {
    throw new EmbeddedError(
      `${directory} was made by PostgreSQL ${version} and this is PostgreSQL ${major}: run the version of Oncegate that made it, ` +
        `carry the data over with pg_dump, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
    );
  }
  return true;
}

/**
 * Made aside and renamed into place whole, password and all: a crash leaves only a directory that the next start sweeps away,
 * and of two first starts one comes too late and takes the other's.
 */
async function makeCluster(dataDir: string, directory: string, binaries: Binaries): Promise<void> {
  const scratch = join(dataDir, `postgres.new-${process.pid}-${randomBytes(6).toString('hex')}`);
  const [data, password] = [join(scratch, 'data'), join(scratch, 'password')];
  clustersInProgress.add(scratch);
  try {
    await mkdir(scratch, { mode: 0o700 });
    const runner = await chooseServerUser(binaries, scratch);
    await writeFile(password, `${randomBytes(24).toString('hex')}\n`, { mode: 0o600, flush: true });
    const file = await open(password);
    if (runner.owner) await file.chown(runner.owner.uid, runner.owner.gid);
    await file.close();
    await runCommand(runner, binaries, binaries.initdb, [
      ...['-D', data, '--username=oncegate', `--pwfile=${password}`, '--auth=scram-sha-256'],
      ...['--encoding=UTF8', '--locale=C'],
    ]);
    await rename(password, join(data, PASSWORD_FILE));
    await syncDirectory(data);
    await rename(data, directory).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
    });
    await syncDirectory(dataDir);
  } finally {
    await rm(scratch, { recursive: true, force: true }).catch(() => {});
    clustersInProgress.delete(scratch);
  }
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path);
  await directory.sync().finally(() => directory.close());
}

/** What this process is making just now; anything else under its pid was left by an earlier owner of that pid. */
const clustersInProgress = new Set<string>();

/** Clears away clusters whose maker died over them. The hour is for makers whose pid has been given to another. */
async function removeAbandonedClusters(dataDir: string): Promise<void> {
  for (const entry of await readdir(dataDir)) {
    const maker = Number(/^postgres\.new-(\d+)-/.exec(entry)?.[1]);
    const path = join(dataDir, entry);
    if (!maker || clustersInProgress.has(path)) continue;
    const made = await stat(path).catch(() => undefined);
    const abandoned = maker === process.pid || !isAlive(maker) || Date.now() - (made?.mtimeMs ?? 0) > 3_600_000;
    if (abandoned) await rm(path, { recursive: true, force: true }).catch(() => {});
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

function toEmbeddedError(error: unknown, dataDir: string): EmbeddedError {
  if (error instanceof EmbeddedError) return error;
  const { code = '', message, path = dataDir } = error as NodeJS.ErrnoException;
  const advice = `choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}`;
  const say = (what: string) => new EmbeddedError(`${what} ${advice}.`, { cause: error });
  if (/^(ENOSPC|EDQUOT)$/.test(code) || DISK_FULL_PATTERN.test(message)) {
    return say(`There is no room for the embedded PostgreSQL in ${dataDir}, the disk is full: make room,`);
  }
  if (/^(EEXIST|ENOTDIR)$/.test(code)) return say(`${path} cannot be a directory, a file is in the way: move it,`);
  if (/^(EACCES|EPERM|EROFS)$/.test(code)) {
    return say(`${path} cannot be used by this user (uid ${process.getuid?.()}, ${code}): change its owner or mode,`);
  }
  return say(`The embedded PostgreSQL cannot be set up in ${dataDir} (${message}): mend that,`);
}
