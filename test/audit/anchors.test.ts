import { randomBytes } from 'node:crypto';
import { copyFile, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { describe, expect, inject, it, onTestFinished } from 'vitest';
import { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import { NoteVerifier } from '../../gateway/domain/audit/signed-note.ts';
import { runCli } from '../cli/terminal.ts';
import { ADMIN_KEY, type Gateway, type Reply } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';
import { createDatabaseForTest, makeReplicaForTest, startGatewayForTest, useGateway } from '../support/use-gateway.ts';

let lastId = 0;

const { upstream, database, gateway } = useGateway({ scope: 'test' });

/** Makes a call and waits until its log entry is sealed. */
async function makeSealedCall(target: Gateway = gateway): Promise<void> {
  lastId += 1;
  const call = await target.call('world.keyed', { id: `sealed-${lastId}` }, { key: `sealed-${lastId}` });
  expect(call.status).toBe(200);
  const proof = await target.admin('GET', `/admin/audit/proof?leaf=${call.body.receipt.leaf}`);
  expect(proof.status).toBe(200);
}

/** Copies the database under another name. Returns the URL of the copy. */
async function backUpDatabase(): Promise<string> {
  const admin = new pg.Client({ connectionString: inject('postgresUrl') });
  await admin.connect();
  const name = `backup_${randomBytes(6).toString('hex')}`;
  const source = new URL(database.url).pathname.slice(1);
  await admin.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [source]);
  await admin.query(`create database ${name} template ${source}`);
  onTestFinished(async () => {
    await admin.query(`drop database if exists ${name} with (force)`);
    await admin.end();
  });
  const url = new URL(database.url);
  url.pathname = `/${name}`;
  return url.href;
}

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return (await client.query(text).finally(() => client.end())).rows;
}

/** Waits until `/readyz` reports troubles, and returns them. */
async function waitForTroubles(target: Gateway = gateway): Promise<string> {
  const read = async () => {
    if (!target.isAlive) throw new Error(target.output);
    return target.request('GET', '/readyz').catch(() => undefined);
  };
  const hasTroubles = (ready?: Reply) => ready?.status === 503 && ready.body.troubles.length > 0;
  return (await pollUntil(read, hasTroubles, { explain: () => target.output }))?.body.troubles.join('\n');
}

async function expectEffectsRefused(target: Gateway = gateway): Promise<void> {
  lastId += 1;
  const id = `refused-${lastId}`;
  const refused = await target.call('world.keyed', { id }, { key: id });
  expect(refused).toMatchObject({ status: 503, body: { code: 'unavailable', retry: 'after_delay' } });
  expect(refused.body.detail).toContain('docs/guides/audit-log.md');
  expect(await upstream.effects(id)).toEqual([]);
  const dryRun = await target.call('world.keyed', { id }, { key: id, headers: { 'oncegate-dry-run': '?1' } });
  expect(dryRun.body.wouldAnswer).toMatchObject({ status: 503, code: 'unavailable' });
  // Reads have no effect and are still allowed.
  expect((await target.call('world.read', { id: 'x' })).status).toBe(200);
}

const acceptLog = () =>
  runCli(['audit', 'accept', '--reason', 'restored after the disk died'], {
    env: { ONCEGATE_URL: gateway.url, ONCEGATE_KEY: ADMIN_KEY },
  });

const DISABLE_TRIGGERS =
  'alter table audit_log disable trigger all; alter table audit_checkpoints disable trigger all;';

describe('a gateway whose database does not match its checkpoints', () => {
  it('detects a restored backup at start, and sends and signs nothing until a person accepts it', async () => {
    await makeSealedCall();
    await gateway.stop();
    const restored = await backUpDatabase();
    await gateway.start();
    for (let i = 0; i < 3; i++) await makeSealedCall();
    await gateway.stop();

    gateway.launch({ DATABASE_URL: restored });
    expect(await waitForTroubles()).toMatch(
      /ends after \d+ entries, but the newest checkpoint in .*checkpoints covers \d+: an older backup/,
    );
    await expectEffectsRefused();
    const signed = await query(restored, 'select max(size)::int as size from audit_checkpoints');
    const accepted = await acceptLog();
    expect([accepted.code, accepted.out]).toEqual([0, 'accepted\n']);
    await gateway.waitUntilReady();
    await makeSealedCall();
    expect((await acceptLog()).out).toBe('nothing was in doubt\n');
    const [leaf] = await query(restored, `select entry from audit_log where entry like '%"what":"log_accepted"%'`);
    const entry = JSON.parse(String(leaf?.['entry']));
    expect(entry).toMatchObject({ person: 'root', reason: 'restored after the disk died' });
    expect(entry.kept).toHaveLength(1);
    // Nothing was signed before the person accepted the log.
    const signedBeforeAcceptance = `select 1 from audit_checkpoints where size > ${signed[0]?.['size']}
      and size <= (select index from audit_log where entry like '%"what":"log_accepted"%')`;
    expect(await query(restored, signedBeforeAcceptance)).toEqual([]);
    const names = await readdir(join(gateway.home, 'data', 'checkpoints'));
    expect(names.filter((name) => name.includes('.until-'))).toHaveLength(1);
    // The acceptance still holds after the next start.
    await gateway.stop();
    await gateway.start({ DATABASE_URL: restored });
    await makeSealedCall();
  });

  it('does not send open calls again before a person accepts the database', async () => {
    const id = 'open';
    await upstream.plan({ match: { id }, do: ['apply', { kill: gateway.pid }, 'drop'] });
    await gateway.call('world.keyed', { id }, { key: id }).catch(() => undefined);
    await gateway.waitForExit();
    const restored = await backUpDatabase();
    await gateway.start();
    await makeSealedCall();
    await gateway.stop();
    const sent = (await upstream.requests(id)).length;

    gateway.launch({ DATABASE_URL: restored });
    await waitForTroubles();
    // Recovery found the call and postponed it.
    await pollUntil(
      async () => (await query(restored, 'select 1 from open_calls where due_at is not null')).length > 0,
    );
    expect(await upstream.requests(id)).toHaveLength(sent);
    expect((await acceptLog()).code).toBe(0);
    const done = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer: 'wait=20' } });
    expect(done.body.state).toBe('succeeded');
    expect((await upstream.requests(id)).length).toBe(sent + 1);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('detects a database that belongs to another log', async () => {
    await makeSealedCall();
    await gateway.stop();
    const other = await createDatabaseForTest();
    gateway.launch({ DATABASE_URL: other.url });
    expect(await waitForTroubles()).toContain('does not belong to this log and key');
    await expectEffectsRefused();
  });

  it('detects at run time that the newest entries were deleted', async () => {
    await makeSealedCall();
    const [before] = await database.query<{ size: string }>('select size from audit_head');
    await makeSealedCall();
    await query(
      database.url,
      `${DISABLE_TRIGGERS} delete from audit_log where index >= ${before?.size};
       delete from audit_checkpoints where size > ${before?.size}; update audit_head set size = ${before?.size}`,
    );
    expect(await waitForTroubles()).toContain(`ends after ${before?.size} entries`);
    await expectEffectsRefused();
  });

  it('does not sign a log whose old entries were rewritten', async () => {
    await makeSealedCall();
    const [newest] = await database.query<{ size: string }>('select max(size) as size from audit_checkpoints');
    await query(
      database.url,
      `${DISABLE_TRIGGERS} update audit_log set entry = 'forged', leaf = sha256('\\x00'::bytea || 'forged') where index = 0`,
    );
    // A denial gives the sequencer an entry to seal.
    expect((await gateway.call('nothing.here', {})).status).toBe(403);
    expect(await waitForTroubles()).toContain('the log was rewritten');
    await expectEffectsRefused();
    expect(await database.query('select max(size) as size from audit_checkpoints')).toEqual([newest]);
    // Nothing is signed after a restart either.
    await gateway.stop();
    gateway.launch();
    expect(await waitForTroubles()).toContain('the log was rewritten');
    expect(await database.query('select max(size) as size from audit_checkpoints')).toEqual([newest]);
  });

  it('does not continue a log that another key signed', async () => {
    await makeSealedCall();
    const { gateway: otherGateway } = await startGatewayForTest({ upstream, database, start: false });
    otherGateway.launch();
    expect(await waitForTroubles(otherGateway)).toContain('audit.key');
    await expectEffectsRefused(otherGateway);
    // The gateway with the right key continues.
    await makeSealedCall();
  });
});

describe('an anchor', () => {
  it('in another directory detects an old database even if the data directory is lost', async () => {
    await gateway.stop();
    const directory = join(gateway.home, 'elsewhere');
    const key = join(gateway.home, 'given.key');
    await copyFile(join(gateway.home, 'data', 'audit.key'), key);
    await writeFile(
      join(gateway.home, 'oncegate.yaml'),
      `audit: { key: given.key, anchors: [{ directory: elsewhere }] }\n`,
    );
    await gateway.start();
    await makeSealedCall();
    await gateway.stop();
    const restored = await backUpDatabase();
    await gateway.start();
    await makeSealedCall();
    await gateway.stop();
    expect((await readdir(directory)).length).toBeGreaterThanOrEqual(1);
    await rm(join(gateway.home, 'data'), { recursive: true });
    gateway.launch({ DATABASE_URL: restored });
    expect(await waitForTroubles()).toContain('elsewhere covers');
    expect((await acceptLog()).code).toBe(0);
    await gateway.waitUntilReady();
  });
});

it('replicas that share a directory never replace a newer checkpoint by an older one', async () => {
  const secondReplica = await makeReplicaForTest(gateway);
  await secondReplica.start();
  const log = new NoteVerifier((await gateway.admin('GET', '/admin/audit/key')).body.trim());
  let newest = 0;
  for (let i = 0; i < 12; i++) {
    await makeSealedCall(i % 2 === 0 ? gateway : secondReplica);
    const note = await new CheckpointFiles(join(gateway.home, 'data', 'checkpoints')).readNewest();
    const { size } = log.verifyCheckpoint(note ?? '');
    expect(size).toBeGreaterThanOrEqual(newest);
    newest = size;
  }
  expect(newest).toBeGreaterThan(12);
});
