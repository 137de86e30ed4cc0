import { generateKeyPairSync } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import { NoteSigner } from '../../gateway/domain/audit/signed-note.ts';
import { LogMonitor } from '../../gateway/flow/audit/log-monitor.ts';
import { Sequencer } from '../../gateway/flow/audit/sequencer.ts';
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

/** The parts of a gateway that seal the log. */
function createSealer(signer: NoteSigner = key) {
  const files = new CheckpointFiles(directory);
  const monitor = new LogMonitor({ db, lease, key: signer, files: [files], witnesses: [], log });
  const sequencer = new Sequencer({ db, log, reachKillPoint: () => {} }, signer, monitor);
  return { files, monitor, sequencer };
}

type Sealer = ReturnType<typeof createSealer>;

async function sealEntry({ monitor, sequencer }: Sealer, entry: string): Promise<void> {
  await enqueueAuditEntry(db, entry);
  expect(await sequencer.seal(0)).toBe(true);
  // The second verification finds nothing new. The monitor then skips its work until a new entry exists.
  await monitor.verify();
  await monitor.verify();
  expect(monitor.findFault()).toBeUndefined();
}

const readNewestSize = async () =>
  (await database.query<{ size: number }>('select max(size)::int as size from audit_checkpoints'))[0]?.size;
const tamper = (statement: string) =>
  database.query(`do $$ begin
    alter table audit_log disable trigger all; alter table audit_checkpoints disable trigger all; ${statement} end $$`);
const rewind = (size: number) =>
  tamper(`delete from audit_log where index >= ${size}; delete from audit_checkpoints where size > ${size};
    update audit_head set size = ${size};`);

it('a log whose old entries were rewritten is not signed, even if it was verified before', async () => {
  const sealer = createSealer();
  for (const entry of ['{"a":1}', '{"b":1}']) await sealEntry(sealer, entry);
  await tamper(`update audit_log set entry = 'x', leaf = sha256('\\x00'::bytea || 'x') where index = 0;`);
  await enqueueAuditEntry(db, '{"c":1}');
  await expect(sealer.sequencer.seal(0)).rejects.toThrow('not the log that was signed');
  expect(await readNewestSize()).toBe(2);
  await sealer.monitor.verify();
  expect(sealer.monitor.findFault()).toContain('the log was rewritten');
});

it('an older state of the log is not signed, even if it was signed before', async () => {
  const sealer = createSealer();
  for (const entry of ['{"a":1}', '{"b":1}', '{"c":1}']) await sealEntry(sealer, entry);
  await rewind(2);
  await enqueueAuditEntry(db, '{"another":"past"}');
  await expect(sealer.sequencer.seal(0)).rejects.toThrow('not the log that was signed');
  expect(await readNewestSize()).toBe(2);
  // A new process, which knows only the anchor, refuses too.
  await expect(createSealer().sequencer.seal(0)).rejects.toThrow('not the log that was signed');
  // A person can accept the log.
  await sealer.monitor.verify();
  expect(sealer.monitor.findFault()).toContain('ends after 2 entries');
  expect(await sealer.sequencer.seal(0, true)).toBe(true);
  await sealer.monitor.acceptCurrentLog();
  expect(sealer.monitor.findFault()).toBeUndefined();
  await sealEntry(sealer, '{"d":1}');
});

it('the checkpoint in memory is compared if no anchor could be written', async () => {
  const sealer = createSealer();
  for (const entry of ['{"a":1}', '{"b":1}']) await sealEntry(sealer, entry);
  await rewind(1);
  await sealer.files.archive();
  await enqueueAuditEntry(db, '{"another":"past"}');
  await expect(sealer.sequencer.seal(0)).rejects.toThrow('not the log that was signed');
});

it('a log that another key signed is not continued', async () => {
  await sealEntry(createSealer(), '{"a":1}');
  const otherSealer = createSealer(new NoteSigner('test/signing', generateKeyPairSync('ed25519').privateKey));
  await otherSealer.monitor.verify();
  expect(otherSealer.monitor.findFault()).toContain('audit.key');
  await enqueueAuditEntry(db, '{"b":1}');
  await expect(otherSealer.sequencer.seal(0)).rejects.toThrow('does not bear the signature');
  expect(await readNewestSize()).toBe(1);
});

it('a file that is not a checkpoint is a fault and not ignored', async () => {
  const sealer = createSealer();
  await sealEntry(sealer, '{"a":1}');
  await sealer.files.write('nonsense', 1_000);
  await sealer.monitor.verify();
  expect(sealer.monitor.findFault()).toContain('the text is not a signed note');
});

it('after a new lease the monitor reports a fault until it compared the log again', async () => {
  const changingLease = { id: 'first' };
  const files = [new CheckpointFiles(directory)];
  const monitor = new LogMonitor({ db, lease: changingLease as Lease, key, files, witnesses: [], log });
  expect(monitor.findFault()).toContain('still being compared');
  await monitor.verify();
  expect(monitor.findFault()).toBeUndefined();
  // The lease lapsed and was taken again. Meanwhile the database may have been replaced.
  changingLease.id = 'second';
  expect(monitor.findFault()).toContain('still being compared');
  await monitor.verify();
  expect(monitor.findFault()).toBeUndefined();
});

it('a queue that is too long for one statement is sealed in parts', async () => {
  const sealer = createSealer();
  // The trigger imitates long entries, of which only forty fit into the time limit of a statement.
  await database.query(`
    create function too_slow() returns trigger language plpgsql as $$ begin
      if (select count(*) from placed) > 40 then raise exception 'too slow' using errcode = 'query_canceled'; end if;
      return null;
    end $$;
    create trigger too_slow after insert on audit_log referencing new table as placed
      for each statement execute function too_slow()`);
  await database.query(`insert into audit_queue (entry) select '{"n":' || n || '}' from generate_series(1, 200) n`);
  let refused = 0;
  while ((await readNewestSize()) !== 200) {
    await sealer.sequencer.seal(0).catch((error: Error) => {
      expect(error.message).toContain('too slow');
      refused += 1;
    });
    expect(refused).toBeLessThan(10);
  }
  expect(refused).toBeGreaterThan(0);
  const entries = await database.query<{ entry: string }>('select entry from audit_log order by index');
  expect(entries.map(({ entry }) => JSON.parse(entry).n)).toEqual(Array.from({ length: 200 }, (_, i) => i + 1));
});

it('a sequencer that failed warns about unsealed entries until any replica seals them', async () => {
  const [failing, healthy] = [createSealer(), createSealer()];
  vi.spyOn(failing.monitor, 'requireSignedTip').mockRejectedValue(new Error('the disk is full'));
  await enqueueAuditEntry(db, '{"a":1}');
  await expect(failing.sequencer.seal(0)).rejects.toThrow('the disk is full');
  const later = performance.now() + 60_000;
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => later);
  const warnings = failing.sequencer.warnings();
  clock.mockRestore();
  expect(warnings).toEqual([expect.stringMatching(/could not be sealed for \d+ s: .*the disk is full/)]);
  expect(await healthy.sequencer.seal(0)).toBe(true);
  await enqueueAuditEntry(db, '{"b":1}');
  const expectWarning = async (isSealed: boolean) => {
    expect(await failing.sequencer.seal(60_000)).toBe(false);
    const laterClock = vi.spyOn(performance, 'now').mockImplementation(() => later);
    expect(failing.sequencer.warnings()).toHaveLength(isSealed ? 0 : 1);
    laterClock.mockRestore();
  };
  // It is too early for the next batch, but an entry still waits, so the warning stays.
  await expectWarning(false);
  expect(await healthy.sequencer.seal(0)).toBe(true);
  await expectWarning(true);
});
