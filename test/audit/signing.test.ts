import { generateKeyPairSync } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import { NoteSigner } from '../../gateway/domain/audit/signed-note.ts';
import { LogMonitor } from '../../gateway/flow/audit/log-monitor.ts';
import { Sequencer } from '../../gateway/flow/audit/sequencer.ts';
import type { Context } from '../../gateway/flow/context.ts';
import { enqueueAuditEntry } from '../../gateway/ledger/audit/audit-queue.ts';
import type { Lease } from '../../gateway/ledger/process-lease.ts';
import { useLease, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(4, 'test');
const lease = useLease(db, 'test');
let directory: string;
const key = new NoteSigner('test/signing', generateKeyPairSync('ed25519').privateKey);
const log = { info: () => {}, warn: () => {}, error: () => {} };

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'oncegate-signing-'));
});
afterEach(async () => {
  await rm(directory, { recursive: true, force: true });
});

/** What seals the log in a gateway, without the gateway. */
function process(by: NoteSigner = key) {
  const files = new CheckpointFiles(directory);
  const watch = new LogMonitor({ db, lease, key: by, files: [files], witnesses: [], log });
  const sequencer = new Sequencer({ db, log, reachKillPoint: () => {} } as unknown as Context, by, watch);
  return { files, watch, sequencer };
}

type Process = ReturnType<typeof process>;

async function sealed({ watch, sequencer }: Process, entry: string): Promise<void> {
  await enqueueAuditEntry(db, entry);
  expect(await sequencer.seal(0)).toBe(true);
  // The second finds nothing new, and will not look again until something is.
  await watch.verify();
  await watch.verify();
  expect(watch.findFault()).toBeUndefined();
}

const newest = async () =>
  (await database.query<{ size: number }>('select max(size)::int as size from audit_checkpoints'))[0]?.size;
const tamper = (statement: string) =>
  database.query(`do $$ begin
    alter table audit_log disable trigger all; alter table audit_checkpoints disable trigger all; ${statement} end $$`);
const rewind = (size: number) =>
  tamper(`delete from audit_log where index >= ${size}; delete from audit_checkpoints where size > ${size};
    update audit_head set size = ${size};`);

it('nothing is signed over a past that was rewritten, whatever was found good before', async () => {
  const gateway = process();
  for (const entry of ['{"a":1}', '{"b":1}']) await sealed(gateway, entry);
  await tamper(`update audit_log set entry = 'x', leaf = sha256('\\x00'::bytea || 'x') where index = 0;`);
  await enqueueAuditEntry(db, '{"c":1}');
  await expect(gateway.sequencer.seal(0)).rejects.toThrow('not the log that was signed');
  expect(await newest()).toBe(2);
  await gateway.watch.verify();
  expect(gateway.watch.findFault()).toContain('the log was rewritten');
});

it('nothing is signed over an older state, even one that was signed itself', async () => {
  const gateway = process();
  for (const entry of ['{"a":1}', '{"b":1}', '{"c":1}']) await sealed(gateway, entry);
  await rewind(2);
  await enqueueAuditEntry(db, '{"another":"past"}');
  await expect(gateway.sequencer.seal(0)).rejects.toThrow('not the log that was signed');
  expect(await newest()).toBe(2);
  // Nor by one that was just started, and knows only what is kept outside.
  await expect(process().sequencer.seal(0)).rejects.toThrow('not the log that was signed');
  // A person may have it so.
  await gateway.watch.verify();
  expect(gateway.watch.findFault()).toContain('ends after 2 entries');
  expect(await gateway.sequencer.seal(0, true)).toBe(true);
  await gateway.watch.acceptCurrentLog();
  expect(gateway.watch.findFault()).toBeUndefined();
  await sealed(gateway, '{"d":1}');
});

it('what is in memory counts where nothing could be kept outside', async () => {
  const gateway = process();
  for (const entry of ['{"a":1}', '{"b":1}']) await sealed(gateway, entry);
  await rewind(1);
  await gateway.files.archive();
  await enqueueAuditEntry(db, '{"another":"past"}');
  await expect(gateway.sequencer.seal(0)).rejects.toThrow('not the log that was signed');
});

it('a log of another key is not gone on with', async () => {
  await sealed(process(), '{"a":1}');
  const stranger = process(new NoteSigner('test/signing', generateKeyPairSync('ed25519').privateKey));
  await stranger.watch.verify();
  expect(stranger.watch.findFault()).toContain('audit.key');
  await enqueueAuditEntry(db, '{"b":1}');
  await expect(stranger.sequencer.seal(0)).rejects.toThrow('does not bear the signature');
  expect(await newest()).toBe(1);
});

it('a file that is no checkpoint is looked into, not passed over', async () => {
  const gateway = process();
  await sealed(gateway, '{"a":1}');
  await gateway.files.write('nonsense', 1_000);
  await gateway.watch.verify();
  expect(gateway.watch.findFault()).toContain('the text is not a signed note');
});

it('under a new lease nothing is sent before the log was looked at', async () => {
  const held = { id: 'first' };
  const files = [new CheckpointFiles(directory)];
  const watch = new LogMonitor({ db, lease: held as Lease, key, files, witnesses: [], log });
  expect(watch.findFault()).toContain('still being compared');
  await watch.verify();
  expect(watch.findFault()).toBeUndefined();
  // It lapsed, and was taken anew: meanwhile the database may have been replaced.
  held.id = 'second';
  expect(watch.findFault()).toContain('still being compared');
  await watch.verify();
  expect(watch.findFault()).toBeUndefined();
});

it('what is too much for one statement is sealed in parts', async () => {
  const gateway = process();
  // As if the entries were so long that no more than forty of them fit into the time that a statement has.
  await database.query(`
    create function too_slow() returns trigger language plpgsql as $$ begin
      if (select count(*) from placed) > 40 then raise exception 'too slow' using errcode = 'query_canceled'; end if;
      return null;
    end $$;
    create trigger too_slow after insert on audit_log referencing new table as placed
      for each statement execute function too_slow()`);
  await database.query(`insert into audit_queue (entry) select '{"n":' || n || '}' from generate_series(1, 200) n`);
  let refused = 0;
  while ((await newest()) !== 200) {
    await gateway.sequencer.seal(0).catch((error: Error) => {
      expect(error.message).toContain('too slow');
      refused += 1;
    });
    expect(refused).toBeLessThan(10);
  }
  expect(refused).toBeGreaterThan(0);
  const entries = await database.query<{ entry: string }>('select entry from audit_log order by index');
  expect(entries.map(({ entry }) => JSON.parse(entry).n)).toEqual(Array.from({ length: 200 }, (_, i) => i + 1));
});

it('is said to be unsealed by one that could not, until it or another did', async () => {
  const [one, other] = [process(), process()];
  vi.spyOn(one.watch, 'requireSignedTip').mockRejectedValue(new Error('the disk is full'));
  await enqueueAuditEntry(db, '{"a":1}');
  await expect(one.sequencer.seal(0)).rejects.toThrow('the disk is full');
  const later = performance.now() + 60_000;
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => later);
  const warnings = one.sequencer.warnings();
  clock.mockRestore();
  expect(warnings).toEqual([expect.stringMatching(/could not be sealed for \d+ s: .*the disk is full/)]);
  expect(await other.sequencer.seal(0)).toBe(true);
  await enqueueAuditEntry(db, '{"b":1}');
  const afterwards = async (isSealed: boolean) => {
    expect(await one.sequencer.seal(60_000)).toBe(false);
    const then = vi.spyOn(performance, 'now').mockImplementation(() => later);
    expect(one.sequencer.warnings()).toHaveLength(isSealed ? 0 : 1);
    then.mockRestore();
  };
  // Too soon after the last one: that nothing is to be done now does not mean that nothing waits.
  await afterwards(false);
  expect(await other.sequencer.seal(0)).toBe(true);
  await afterwards(true);
});
