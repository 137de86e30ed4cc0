import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { describe, expect, it, onTestFinished } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { type Gateway, type GatewayOptions, makeGateway, PEOPLE_YAML } from '../support/gateway.ts';
import { createDatabaseForTest, startUpstreamForTest } from '../support/use-gateway.ts';
import { stopAfterTest } from '../support/use-resource.ts';

const run = promisify(execFile);

/** A gateway that the test starts. */
const makeGatewayForTest = (options: GatewayOptions) => stopAfterTest(makeGateway(options), (made) => made.dispose());

const readPostmasterPid = async (gateway: Gateway) =>
  Number((await readFile(join(gateway.home, 'data/postgres/postmaster.pid'), 'utf8')).split('\n')[0]);
/** A zombie process counts as ended; its parent has only not collected it yet. */
const isAlive = (pid: number) => {
  try {
    process.kill(pid, 0);
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
};

describe('the embedded ledger', () => {
  it('survives kill -9 of the gateway, is reused, and ends with a clean stop', async () => {
    const upstream = await startUpstreamForTest();
    const gateway = await makeGatewayForTest({ policies: buildFaultPolicies(upstream.url) });
    await gateway.start();
    const first = await gateway.call('world.keyed', { id: 'a' }, { key: 'a' });
    expect(first.status).toBe(200);
    const pid = await readPostmasterPid(gateway);
    await gateway.kill();
    expect(isAlive(pid)).toBe(true);

    await gateway.start();
    expect(await readPostmasterPid(gateway)).toBe(pid);
    const again = await gateway.call('world.keyed', { id: 'a' }, { key: 'a' });
    expect(again.body).toEqual({ ...first.body, replayed: true });
    expect(await gateway.stop()).toEqual({ code: 0, signal: null });
    expect(isAlive(pid)).toBe(false);

    await gateway.start();
    expect((await gateway.call('world.keyed', { id: 'a' }, { key: 'a' })).body.replayed).toBe(true);
    expect(await upstream.effects('a')).toHaveLength(1);
  });

  it('is shared by a second replica with the same data directory, and the last replica stops it', async () => {
    const upstream = await startUpstreamForTest();
    const one = await makeGatewayForTest({ policies: buildFaultPolicies(upstream.url) });
    const two = await makeGatewayForTest({ policies: buildFaultPolicies(upstream.url), beside: one });
    await Promise.all([one.start(), two.start()]);
    const pid = await readPostmasterPid(one);
    const first = await one.call('world.keyed', { id: 'b' }, { key: 'b' });
    const second = await two.call('world.keyed', { id: 'b' }, { key: 'b' });
    expect(second.body).toEqual({ ...first.body, replayed: true });
    await one.stop();
    expect(isAlive(pid)).toBe(true);
    expect((await two.call('world.keyed', { id: 'c' }, { key: 'c' })).status).toBe(200);
    await two.stop();
    expect(isAlive(pid)).toBe(false);
  });
});

describe('a shutdown', () => {
  it('on SIGTERM settles calls in flight, answers their callers, and exits 0', async () => {
    const upstream = await startUpstreamForTest();
    const database = await createDatabaseForTest();
    const gateway = await makeGatewayForTest({ policies: buildFaultPolicies(upstream.url), databaseUrl: database.url });
    await gateway.start();
    await upstream.plan({ match: { id: 'slow' }, do: [{ event: 'arrived' }, { wait: 'go' }] });
    const inFlight = gateway.call('world.none', { id: 'slow' }, { key: 'slow' });
    const held = gateway.call('world.held', { id: 'held' }, { key: 'held' });
    await upstream.awaitEvent('arrived');
    await expect
      .poll(() => database.query(`select 1 from open_calls where state = 'held'`).then((rows) => rows.length))
      .toBe(1);
    gateway.signal('SIGTERM');
    expect((await held).status).toBe(202);
    // Further signals change nothing. A signal to the process group arrives again through npm.
    for (const again of ['SIGTERM', 'SIGINT'] as const) gateway.signal(again);
    await upstream.release('go');
    expect((await inFlight).status).toBe(200);
    expect(await gateway.waitForExit()).toEqual({ code: 0, signal: null });
    expect(await database.query(`select 1 from processes where ended_at is null`)).toEqual([]);
  });

  it('during a start waits until the start is complete, and leaves nothing running', async () => {
    const gateway = await makeGatewayForTest({ policies: { 'people.yaml': PEOPLE_YAML } });
    gateway.launch();
    const started = () => readPostmasterPid(gateway).catch(() => 0);
    await expect.poll(started, { timeout: 30_000 }).toBeGreaterThan(0);
    const pid = await readPostmasterPid(gateway);
    gateway.signal('SIGINT');
    expect(await gateway.waitForExit()).toEqual({ code: 0, signal: null });
    expect(isAlive(pid)).toBe(false);
  });

  it('during a start that hangs does not wait', { timeout: 30_000 }, async () => {
    const database = await createDatabaseForTest();
    const other = new pg.Client({ connectionString: database.url });
    await other.connect();
    onTestFinished(() => other.end());
    // This lock simulates a replica that hangs during a migration.
    await other.query('begin');
    await other.query('lock table schema_migrations in access exclusive mode');
    const gateway = await makeGatewayForTest({ policies: { 'people.yaml': PEOPLE_YAML }, databaseUrl: database.url });
    gateway.launch();
    const waiting = `select 1 from pg_locks where relation = 'schema_migrations'::regclass and not granted
      and database = (select oid from pg_database where datname = current_database())`;
    const countWaiting = async () => (await other.query(waiting)).rowCount;
    await expect.poll(countWaiting, { timeout: 20_000 }).toBeGreaterThan(0);
    gateway.signal('SIGTERM');
    expect(await gateway.waitForExit()).toEqual({ code: 0, signal: null });
  });

  it.each(['to npm', 'to its whole group'])(
    'works through npm start and leaves nothing running, with the signal sent %s',
    async (to) => {
      const gateway = await makeGatewayForTest({ policies: { 'people.yaml': PEOPLE_YAML } });
      const npm = spawn('npm', ['start', '--ignore-scripts'], {
        env: {
          ...process.env,
          PORT: String(gateway.port),
          ONCEGATE_DATA_DIR: join(gateway.home, 'data'),
          LOG_LEVEL: 'warn',
        },
        stdio: 'ignore',
        detached: true,
      });
      await expect
        .poll(
          () =>
            fetch(`${gateway.url}/readyz`).then(
              (r) => r.status,
              () => 0,
            ),
          { timeout: 30_000 },
        )
        .toBe(200);
      const pid = await readPostmasterPid(gateway);
      const ended = once(npm, 'exit');
      process.kill(to === 'to npm' ? (npm.pid ?? 0) : -(npm.pid ?? 0), 'SIGTERM');
      const [code] = await ended;
      expect(code).toBe(0);
      await expect.poll(() => isAlive(pid), { timeout: 5_000 }).toBe(false);
      expect(
        await fetch(`${gateway.url}/healthz`).then(
          () => 'up',
          () => 'down',
        ),
      ).toBe('down');
    },
  );
});

describe('a start that fails', () => {
  it('reports every fault of configuration and policies at once, as file:line, and exits 1', async () => {
    const gateway = await makeGatewayForTest({
      policies: {
        'bad.yaml':
          'tools:\n  x.y:\n    upstream: nowhere\n    efect: read\nagents:\n  a:\n    rules:\n      - alow: x.y\n',
      },
    });
    gateway.launch();
    expect((await gateway.waitForExit()).code).toBe(1);
    expect(gateway.output).toMatch(/bad\.yaml:4:5: Unknown key "efect"\. Did you mean "effect"/);
    expect(gateway.output).toMatch(/bad\.yaml:8:9: Unknown key "alow"/);

    await writeFile(
      join(gateway.home, 'oncegate.yaml'),
      'listen: { port: 99999999 }\nretention: { payloads: soon }\nfoo: 1\n',
    );
    gateway.launch();
    expect((await gateway.waitForExit()).code).toBe(1);
    expect(gateway.output).toMatch(/oncegate\.yaml:1:\d+: port must be at most 65535 \(got 99999999\)\./);
    expect(gateway.output).toMatch(/oncegate\.yaml:2:\d+: payloads .*\(got soon\)\./);
    expect(gateway.output).toMatch(/oncegate\.yaml:3:1: Unknown key "foo"/);
    expect(gateway.output.split('bad.yaml:8:9').length, 'the policies are reported with the configuration').toBe(3);
  });

  it('says what to do when the port is taken', async () => {
    const gateway = await makeGatewayForTest({ policies: { 'people.yaml': PEOPLE_YAML } });
    const occupant = createServer().listen(gateway.port, '127.0.0.1');
    await once(occupant, 'listening');
    onTestFinished(() => void occupant.close());
    gateway.launch();
    expect((await gateway.waitForExit()).code).toBe(1);
    expect(gateway.output).toMatch(/port \d+ of 127\.0\.0\.1 is taken.*PORT=/s);
  });

  it('says what to do when the data directory is unusable or the database is unreachable', async () => {
    const gateway = await makeGatewayForTest({ policies: { 'people.yaml': PEOPLE_YAML } });
    await mkdir(gateway.home, { recursive: true });
    await writeFile(join(gateway.home, 'a-file'), '');
    gateway.launch({ ONCEGATE_DATA_DIR: join(gateway.home, 'a-file') });
    expect((await gateway.waitForExit()).code).toBe(1);
    expect(gateway.output).toMatch(/a-file/);
    gateway.launch({ DATABASE_URL: 'postgres://x:y@127.0.0.1:1/none' });
    expect((await gateway.waitForExit()).code).toBe(1);
    expect(gateway.output).toMatch(/DATABASE_URL/);
  });

  it('reports a database that accepts the connection and never answers', { timeout: 30_000 }, async () => {
    const sockets: Socket[] = [];
    const silent = createServer((socket) => sockets.push(socket)).listen(0, '127.0.0.1');
    await once(silent, 'listening');
    onTestFinished(() => {
      for (const socket of sockets) socket.destroy();
      silent.close();
    });
    const { port } = silent.address() as AddressInfo;
    const options = { policies: { 'people.yaml': PEOPLE_YAML }, databaseUrl: `postgres://x:y@127.0.0.1:${port}/none` };
    const [left, ended] = [await makeGatewayForTest(options), await makeGatewayForTest(options)];
    const connected = once(silent, 'connection');
    ended.launch();
    await connected;
    ended.signal('SIGTERM');
    left.launch();
    expect(await ended.waitForExit()).toEqual({ code: 0, signal: null });
    expect(await left.waitForExit()).toEqual({ code: 1, signal: null });
    expect(left.output).toMatch(/the database of DATABASE_URL cannot be used: it does not answer within 10 s/);
  });
});

it('the demo walkthrough runs against a gateway without a failed check', async () => {
  const gateway = await makeGatewayForTest({ policies: {} });
  await gateway.start({ ONCEGATE_POLICIES: resolve('policies') });
  expect(gateway.output).toMatch(/agent key {3}og_demo_/);
  const curls = gateway.output.split('\n').filter((line) => line.startsWith('curl '));
  expect(curls).toHaveLength(3);
  const answers: string[] = [];
  for (const line of curls) answers.push((await run('bash', ['-c', line])).stdout);
  expect(JSON.parse(answers[0] ?? '').tools.length).toBeGreaterThan(5);
  expect(JSON.parse(answers[1] ?? '')).toMatchObject({ state: 'succeeded', replayed: false });
  expect(JSON.parse(answers[2] ?? '')).toEqual({ ...JSON.parse(answers[1] ?? ''), replayed: true });

  const { stdout } = await run(process.execPath, ['dist/demo/walkthrough.js'], {
    env: { ...process.env, ONCEGATE_URL: gateway.url, ONCEGATE_DATA_DIR: join(gateway.home, 'data') },
  });
  expect(stdout).toMatch(/1\./);
  // One saga is undone in reverse order; another one lists what it cannot undo.
  const undone = ['payments.charge: nothing to undo', 'undone by payments.refund', 'undone by tickets.close'];
  const positions = [...undone, 'undone by files.restore', 'says "Welcome, Ann." again'].map((text) =>
    stdout.indexOf(text),
  );
  expect(positions).not.toContain(-1);
  expect(positions).toEqual(positions.toSorted((a, b) => a - b));
  for (const text of ['< parked: mail.send', 'resume, and waive the mail', '< closed: Ann knows'])
    expect(stdout).toContain(text);
  expect(stdout).not.toMatch(/✗/);

  // The demo reads its keys from the data directory of the gateway, so both need the same directory.
  const runWithDataDir = async (dir: string) => {
    const env = { ...process.env, ONCEGATE_URL: gateway.url, ONCEGATE_DATA_DIR: join(gateway.home, dir) };
    const failed = await run(process.execPath, ['dist/demo/walkthrough.js'], { env }).catch((error) => error);
    return String(failed.stdout).replace(/\s+/g, ' ');
  };
  expect(await runWithDataDir('nothing')).toContain('with an ONCEGATE_DATA_DIR, set the same one here');
  await mkdir(join(gateway.home, 'other'));
  await writeFile(
    join(gateway.home, 'other', 'demo-keys.json'),
    JSON.stringify({ agentKey: 'og_demo_old', adminKey: 'og_admin_old' }),
  );
  expect(await runWithDataDir('other')).toContain('Set ONCEGATE_DATA_DIR to the one it was started with');
});
