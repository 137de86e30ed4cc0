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

let n = 0;

const { upstream, database, gateway } = useGateway({ scope: 'test' });

/** A call that is done, and sealed. */
async function sealedCall(on: Gateway = gateway): Promise<void> {
  n += 1;
  const call = await on.call('world.keyed', { id: `sealed-${n}` }, { key: `sealed-${n}` });
  expect(call.status).toBe(200);
  const proof = await on.admin('GET', `/admin/audit/proof?leaf=${call.body.receipt.leaf}`);
  expect(proof.status).toBe(200);
}

/** The database as it is now, under another name. */
async function backup(): Promise<string> {
  const admin = new pg.Client({ connectionString: inject('postgresUrl') });
  await admin.connect();
  const name = `backup_${randomBytes(6).toString('hex')}`;
  const of = new URL(database.url).pathname.slice(1);
  await admin.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [of]);
  await admin.query(`create database ${name} template ${of}`);
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

/** What `/readyz` says is wrong, once anything is. */
async function trouble(on: Gateway = gateway): Promise<string> {
  const read = async () => {
    if (!on.isAlive) throw new Error(on.output);
    return on.request('GET', '/readyz').catch(() => undefined);
  };
  const isTroubled = (ready?: Reply) => ready?.status === 503 && ready.body.troubles.length > 0;
  return (await pollUntil(read, isTroubled, { explain: () => on.output }))?.body.troubles.join('\n');
}

async function refusesEffects(on: Gateway = gateway): Promise<void> {
  n += 1;
  const id = `refused-${n}`;
  const refused = await on.call('world.keyed', { id }, { key: id });
  expect(refused).toMatchObject({ status: 503, body: { code: 'unavailable', retry: 'after_delay' } });
  expect(refused.body.detail).toContain('docs/guides/audit-log.md');
  expect(await upstream.effects(id)).toEqual([]);
  const dry = await on.call('world.keyed', { id }, { key: id, headers: { 'oncegate-dry-run': '?1' } });
  expect(dry.body.wouldAnswer).toMatchObject({ status: 503, code: 'unavailable' });
  // To look is no effect, and what was answered before is told again.
  expect((await on.call('world.read', { id: 'x' })).status).toBe(200);
}

const accept = (on: Gateway = gateway) =>
  runCli(['audit', 'accept', '--reason', 'restored after the disk died'], {
    env: { ONCEGATE_URL: on.url, ONCEGATE_KEY: ADMIN_KEY },
  });

const TAMPER = 'alter table audit_log disable trigger all; alter table audit_checkpoints disable trigger all;';

describe('a database that is not what it was', () => {
  it('restored from a backup, is noticed at start; nothing is sent or signed until a person accepts it', async () => {
    await sealedCall();
    await gateway.stop();
    const restored = await backup();
    await gateway.start();
    for (let i = 0; i < 3; i++) await sealedCall();
    await gateway.stop();

    gateway.launch({ DATABASE_URL: restored });
    expect(await trouble()).toMatch(
      /ends after \d+ entries, but the newest checkpoint in .*checkpoints covers \d+: an older backup/,
    );
    await refusesEffects();
    const signed = await query(restored, 'select max(size)::int as size from audit_checkpoints');
    const accepted = await accept();
    expect([accepted.code, accepted.out]).toEqual([0, 'accepted\n']);
    await gateway.waitUntilReady();
    await sealedCall();
    expect((await accept()).out).toBe('nothing was in doubt\n');
    const [leaf] = await query(restored, `select entry from audit_log where entry like '%"what":"log_accepted"%'`);
    const entry = JSON.parse(String(leaf?.['entry']));
    expect(entry).toMatchObject({ person: 'root', reason: 'restored after the disk died' });
    expect(entry.kept).toHaveLength(1);
    // While it was in doubt nothing was signed.
    const between = `select 1 from audit_checkpoints where size > ${signed[0]?.['size']}
      and size <= (select index from audit_log where entry like '%"what":"log_accepted"%')`;
    expect(await query(restored, between)).toEqual([]);
    const names = await readdir(join(gateway.home, 'data', 'checkpoints'));
    expect(names.filter((name) => name.includes('.until-'))).toHaveLength(1);
    // And it holds after the next start.
    await gateway.stop();
    await gateway.start({ DATABASE_URL: restored });
    await sealedCall();
  });

  it('with open calls does not send them again before a person accepts it', async () => {
    const id = 'open';
    await upstream.plan({ match: { id }, do: ['apply', { kill: gateway.pid }, 'drop'] });
    await gateway.call('world.keyed', { id }, { key: id }).catch(() => undefined);
    await gateway.waitForExit();
    const restored = await backup();
    await gateway.start();
    await sealedCall();
    await gateway.stop();
    const sent = (await upstream.requests(id)).length;

    gateway.launch({ DATABASE_URL: restored });
    await trouble();
    // Recovery came upon it, and put it off.
    await pollUntil(
      async () => (await query(restored, 'select 1 from open_calls where due_at is not null')).length > 0,
    );
    expect(await upstream.requests(id)).toHaveLength(sent);
    expect((await accept()).code).toBe(0);
    const done = await gateway.call('world.keyed', { id }, { key: id, headers: { prefer: 'wait=20' } });
    expect(done.body.state).toBe('succeeded');
    expect((await upstream.requests(id)).length).toBe(sent + 1);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('that is another one, or empty, is noticed', async () => {
    await sealedCall();
    await gateway.stop();
    const other = await createDatabaseForTest();
    gateway.launch({ DATABASE_URL: other.url });
    expect(await trouble()).toContain('does not belong to this log and key');
    await refusesEffects();
  });

  it('that loses its end while the gateway runs, is noticed', async () => {
    await sealedCall();
    const [before] = await database.query<{ size: string }>('select size from audit_head');
    await sealedCall();
    await query(
      database.url,
      `${TAMPER} delete from audit_log where index >= ${before?.size};
       delete from audit_checkpoints where size > ${before?.size}; update audit_head set size = ${before?.size}`,
    );
    expect(await trouble()).toContain(`ends after ${before?.size} entries`);
    await refusesEffects();
  });

  it('whose past is rewritten gets no signature for it', async () => {
    await sealedCall();
    const [newest] = await database.query<{ size: string }>('select max(size) as size from audit_checkpoints');
    await query(
      database.url,
      `${TAMPER} update audit_log set entry = 'forged', leaf = sha256('\\x00'::bytea || 'forged') where index = 0`,
    );
    // Something to be sealed: a denial.
    expect((await gateway.call('nothing.here', {})).status).toBe(403);
    expect(await trouble()).toContain('the log was rewritten');
    await refusesEffects();
    expect(await database.query('select max(size) as size from audit_checkpoints')).toEqual([newest]);
    // Nor after a restart.
    await gateway.stop();
    gateway.launch();
    expect(await trouble()).toContain('the log was rewritten');
    expect(await database.query('select max(size) as size from audit_checkpoints')).toEqual([newest]);
  });

  it('signed with another key is not gone on with', async () => {
    await sealedCall();
    const { gateway: stranger } = await startGatewayForTest({ upstream, database, start: false });
    stranger.launch();
    expect(await trouble(stranger)).toContain('audit.key');
    await refusesEffects(stranger);
    // The one that has the key is not disturbed.
    await sealedCall();
  });
});

describe('anchors', () => {
  it('in further directories are kept, and count when the data directory is lost', async () => {
    await gateway.stop();
    const directory = join(gateway.home, 'elsewhere');
    const key = join(gateway.home, 'given.key');
    await copyFile(join(gateway.home, 'data', 'audit.key'), key);
    await writeFile(
      join(gateway.home, 'oncegate.yaml'),
      `audit: { key: given.key, anchors: [{ directory: elsewhere }] }\n`,
    );
    await gateway.start();
    await sealedCall();
    await gateway.stop();
    const restored = await backup();
    await gateway.start();
    await sealedCall();
    await gateway.stop();
    expect((await readdir(directory)).length).toBeGreaterThanOrEqual(1);
    await rm(join(gateway.home, 'data'), { recursive: true });
    gateway.launch({ DATABASE_URL: restored });
    expect(await trouble()).toContain('elsewhere covers');
    expect((await accept()).code).toBe(0);
    await gateway.waitUntilReady();
  });
});

it('replicas that share a directory never put an older checkpoint in the place of a newer', async () => {
  const beside = await makeReplicaForTest(gateway);
  await beside.start();
  const log = new NoteVerifier((await gateway.admin('GET', '/admin/audit/key')).body.trim());
  let newest = 0;
  for (let i = 0; i < 12; i++) {
    await sealedCall(i % 2 === 0 ? gateway : beside);
    const note = await new CheckpointFiles(join(gateway.home, 'data', 'checkpoints')).readNewest();
    const { size } = log.verifyCheckpoint(note ?? '');
    expect(size).toBeGreaterThanOrEqual(newest);
    newest = size;
  }
  expect(newest).toBeGreaterThan(12);
});
