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
  runAsServerUser,
  USE_OWN_SERVER_HINT,
} from './binaries.ts';
import { joinOrStartServer, joinServer, leaveServer, shutDownServer } from './server.ts';

export { EmbeddedError };

/** A PostgreSQL server under the data directory, for gateways without DATABASE_URL. All gateways of the directory share it. */
export interface EmbeddedPostgres {
  readonly url: string;
  /** True: the server was already running. False: this process started it. */
  readonly joined: boolean;
  /** Leaves the server. The last gateway to leave stops it and waits until it has ended. */
  stop(): Promise<void>;
}

interface EmbeddedOptions {
  /** An absolute path. The cluster is in `postgres/` below it, with its password in `postgres/oncegate.password`. */
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
      log(`creating a PostgreSQL ${binaries.major} cluster in ${directory}`);
      await makeCluster(dataDir, directory, binaries);
      await hasUsableCluster(directory, binaries.major); // A concurrent first start may have put its own cluster there.
    }
    const cluster: Cluster = {
      directory: await realpath(directory),
      logFile: join(dataDir, 'postgres.log'),
      binaries,
      user: await findClusterUser(directory),
      password: (await readFile(join(directory, PASSWORD_FILE), 'utf8')).trim(),
      log,
    };
    return await attachToServer(cluster);
  } catch (error) {
    throw toEmbeddedError(error, dataDir);
  }
}

/** Keeps the server until `stop`, and restarts it if it dies meanwhile. */
async function attachToServer(cluster: Cluster): Promise<EmbeddedPostgres> {
  const name = `${process.pid}-${randomBytes(4).toString('hex')}`;
  const { log } = cluster;
  const closing = new AbortController();
  let server = await joinOrStartServer(cluster, name);
  let restarting: Promise<void> | undefined;
  const { port, started } = server;
  log(
    `${started ? 'started' : 'joined'} PostgreSQL on 127.0.0.1:${port} (pid ${server.pid}, run by ${cluster.user.name})`,
  );

  const restartOnLoss = () => {
    server.presence.once('end', () => {
      if (!closing.signal.aborted) restarting = restart();
    });
  };
  const restart = async (): Promise<void> => {
    log('the embedded PostgreSQL has stopped unexpectedly, restarting it');
    while (!closing.signal.aborted) {
      try {
        server = await joinOrStartServer(cluster, name, port, closing.signal);
        restartOnLoss();
        const moved = server.port === port ? '' : `, but on port ${server.port}: restart this gateway`;
        log(`the embedded PostgreSQL is back (pid ${server.pid})${moved}`);
        return;
      } catch (error) {
        if (closing.signal.aborted) return;
        log(`the embedded PostgreSQL cannot be restarted, trying again: ${(error as Error).message}`);
        await delay(2_000, undefined, { signal: closing.signal }).catch(() => {});
      }
    }
  };
  const close = async (): Promise<void> => {
    closing.abort();
    await restarting;
    for (const deadline = Date.now() + 5_000; ; await delay(50)) {
      try {
        log(`PostgreSQL ${await leaveServer(cluster, server)}`);
        return;
      } catch (error) {
        if (error instanceof EmbeddedError) throw error;
      }
      // The presence connection was lost, because the server was stopped. End it, so that it is not counted as another gateway.
      await Promise.race([server.presence.end().catch(() => {}), delay(1_000)]);
      const session = await joinServer(cluster, name).catch(() => 'absent' as const);
      if (session === 'absent') return;
      if (session !== 'unreachable') server = { ...session, started };
      else if (Date.now() > deadline) return server.started ? shutDownServer(cluster, server.pid) : undefined;
    }
  };

  restartOnLoss();
  let closed: Promise<void> | undefined;
  return {
    // sslmode: the environment (PGSSLMODE) may ask for TLS, which this server does not offer.
    url: `postgres://oncegate:${cluster.password}@127.0.0.1:${port}/oncegate?sslmode=disable`,
    joined: !started,
    stop: () => {
      closed ??= close();
      return closed;
    },
  };
}

const PASSWORD_FILE = 'oncegate.password';

/** Root makes the directory passable for others, without listing: the user that runs PostgreSQL must reach the cluster in it. */
async function makeDataDir(dataDir: string): Promise<void> {
  const made = await mkdir(dataDir, { recursive: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
    return mkdir(dataDir).then(() => dataDir); // With `recursive`, Node reports a read-only file system as ENOENT.
  });
  if (made) await chmod(dataDir, process.getuid?.() === 0 ? 0o711 : 0o700);
}

/** Whether a cluster exists. Throws if this process cannot run it. */
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
        `move the data with pg_dump, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
    );
  }
  return true;
}

/**
 * Creates the cluster in a scratch directory, with its password, and renames it into place. A crash leaves only a scratch
 * directory, which the next start removes. Of two concurrent first starts, the second rename fails and uses the first cluster.
 */
async function makeCluster(dataDir: string, directory: string, binaries: Binaries): Promise<void> {
  const scratch = join(dataDir, `postgres.new-${process.pid}-${randomBytes(6).toString('hex')}`);
  const [data, password] = [join(scratch, 'data'), join(scratch, 'password')];
  clustersInProgress.add(scratch);
  try {
    await mkdir(scratch, { mode: 0o700 });
    const user = await chooseServerUser(binaries, scratch);
    await writeFile(password, `${randomBytes(24).toString('hex')}\n`, { mode: 0o600, flush: true });
    const file = await open(password);
    if (user.owner) await file.chown(user.owner.uid, user.owner.gid);
    await file.close();
    await runAsServerUser(user, binaries, binaries.initdb, [
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

/** Scratch directories of this process. Any other one with its pid was left by an earlier process with the same pid. */
const clustersInProgress = new Set<string>();

const ABANDONED_AFTER_MS = 3_600_000;

/** Removes scratch directories of dead processes. After an hour it removes them anyway, because the pid may have been reused. */
async function removeAbandonedClusters(dataDir: string): Promise<void> {
  for (const entry of await readdir(dataDir)) {
    const creatorPid = Number(/^postgres\.new-(\d+)-/.exec(entry)?.[1]);
    const path = join(dataDir, entry);
    if (!creatorPid || clustersInProgress.has(path)) continue;
    const stats = await stat(path).catch(() => undefined);
    const isAbandoned =
      creatorPid === process.pid || !isAlive(creatorPid) || Date.now() - (stats?.mtimeMs ?? 0) > ABANDONED_AFTER_MS;
    if (isAbandoned) await rm(path, { recursive: true, force: true }).catch(() => {});
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
  const buildError = (problem: string) => new EmbeddedError(`${problem} ${advice}.`, { cause: error });
  if (/^(ENOSPC|EDQUOT)$/.test(code) || DISK_FULL_PATTERN.test(message)) {
    return buildError(`There is no room for the embedded PostgreSQL in ${dataDir}, the disk is full: make room,`);
  }
  if (/^(EEXIST|ENOTDIR)$/.test(code))
    return buildError(`${path} cannot be a directory, a file is in the way: move it,`);
  if (/^(EACCES|EPERM|EROFS)$/.test(code)) {
    return buildError(
      `${path} cannot be used by this user (uid ${process.getuid?.()}, ${code}): change its owner or mode,`,
    );
  }
  return buildError(`The embedded PostgreSQL cannot be set up in ${dataDir} (${message}): fix that,`);
}
