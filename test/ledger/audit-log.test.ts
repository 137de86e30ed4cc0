import { generateKeyPairSync } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { hashLeaf } from '../../gateway/domain/audit/audit.ts';
import { Frontier, Proof, verifyInclusion } from '../../gateway/domain/audit/merkle.ts';
import { NoteSigner, NoteVerifier } from '../../gateway/domain/audit/signed-note.ts';
import {
  findLeaf,
  hasWaitingLeaves,
  readEntries,
  readNewestCheckpoint,
  readProofHashes,
  type SignCheckpoint,
  sealLeaves,
} from '../../gateway/ledger/audit/audit-log.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

let database: TestDatabase;
let db: Database;
let other: Database;
const key = new NoteSigner('test/log', generateKeyPairSync('ed25519').privateKey);
const log = new NoteVerifier(key.verifier);
const sign: SignCheckpoint = async (_before, size, root) => key.sign(size, root);

beforeAll(async () => {
  database = await createTestDatabase();
  db = new Database(database.url, { max: 4, applicationName: 'test' });
  other = new Database(database.url, { max: 4, applicationName: 'test-other' });
});
afterAll(async () => {
  await db?.close();
  await other?.close();
  await database?.drop();
});

const write = (entries: readonly string[]) =>
  database.query('insert into audit_queue (entry) select unnest($1::text[])', [entries]);

/** Reads the whole log and verifies it against a tree that is built anew. */
async function readVerifiedLog(): Promise<string[]> {
  const note = (await readNewestCheckpoint(db)) ?? '';
  const { size, root } = log.verifyCheckpoint(note);
  const entries = await readEntries(db, 0, size + 1);
  expect(entries).toHaveLength(size);
  const frontier = new Frontier();
  for (const { index, leaf, entry, checkpoint } of entries) {
    // No `expect` for each entry: it would take longer than everything else.
    if (index !== frontier.size || !leaf.equals(hashLeaf(entry))) throw new Error(`entry ${index} is bad: ${entry}`);
    frontier.append(leaf);
    if (checkpoint !== null)
      expect(log.verifyCheckpoint(checkpoint)).toMatchObject({ size: frontier.size, root: frontier.computeRoot() });
  }
  expect(frontier.computeRoot()).toEqual(root);
  return entries.map(({ entry }) => entry);
}

describe('sealing leaves', () => {
  it('appends each leaf once, under a checkpoint, whatever its content', async () => {
    expect(await hasWaitingLeaves(db, 0)).toBe(false);
    expect(await sealLeaves(db, sign)).toBeUndefined();
    const odd = ['{"a":1}', '{"text":"\\u0000 ünïcödé \u{1f511} \\\\ \'"}', ''];
    await write(odd);
    expect(await hasWaitingLeaves(db, 0)).toBe(true);
    const sealed = await sealLeaves(db, sign);
    expect(sealed).toMatchObject({ size: 3, isFull: false });
    expect(await readVerifiedLog()).toEqual(odd);
    expect(await database.query('select 1 from audit_queue')).toEqual([]);
    expect(await hasWaitingLeaves(db, 0)).toBe(false);
    await write(['{"b":1}']);
    // The log was sealed just now, so waiting leaves are not due yet.
    expect(await hasWaitingLeaves(db, 60_000)).toBe(false);
    await database.query(`update audit_head set sealed_at = now() + interval '1 day'`);
    expect(await hasWaitingLeaves(db, 60_000)).toBe(true);
    await sealLeaves(db, sign);
  });

  it('works in batches over several levels of the tree, and every entry has a proof', async () => {
    const before = log.verifyCheckpoint((await readNewestCheckpoint(db)) ?? '').size;
    const entries = Array.from({ length: 70_000 }, (_, i) => `{"n":${i}}`);
    await write(entries);
    while ((await sealLeaves(db, sign, 6_000))?.isFull);
    expect(await database.query('select distinct level from audit_nodes order by level')).toHaveLength(2);
    expect((await readVerifiedLog()).slice(before)).toEqual(entries);
    const { size, root } = log.verifyCheckpoint((await readNewestCheckpoint(db)) ?? '');
    for (const n of [0, 1, 255, 256, 65_535, 65_536, 69_999]) {
      const leaf = hashLeaf(`{"n":${n}}`);
      const found = await findLeaf(db, leaf);
      expect(found).toMatchObject({ entry: `{"n":${n}}` });
      const index = found?.index ?? -1;
      const proof = await readProofHashes(db, Proof.inclusion(index, size));
      expect(verifyInclusion(leaf, index, size, proof, root)).toBe(true);
    }
  });

  it('is done by one process at a time, by each in turn', async () => {
    const before = (await readVerifiedLog()).length;
    const rounds = Array.from({ length: 40 }, (_, round) => async () => {
      await write(Array.from({ length: 50 }, (_, i) => `{"at":"${round}/${i}"}`));
      await Promise.all([sealLeaves(db, sign, 37), sealLeaves(other, sign, 23), sealLeaves(db, sign, 11)]);
    });
    await Promise.all(rounds.map((round) => round()));
    while ((await sealLeaves(db, sign)) !== undefined);
    const after = await readVerifiedLog();
    expect(after).toHaveLength(before + 2_000);
    expect(new Set(after).size).toBe(after.length);
  });

  it('misses no entry that commits late with an old id', async () => {
    const before = (await readVerifiedLog()).length;
    await other.transaction(async (tx) => {
      await tx.run({ name: 'late', text: `insert into audit_queue (entry) values ('{"late":1}')`, values: [] });
      for (let round = 0; round < 4; round++) {
        await write([`{"early":${round}}`]);
        expect((await sealLeaves(db, sign))?.size).toBe(before + round + 1);
        // As if a minute had passed: the open transaction is still waited for.
        await database.query(`update audit_head set settling_at = now() - interval '2 minutes'`);
      }
    });
    expect(await hasWaitingLeaves(db, 0)).toBe(true);
    await sealLeaves(db, sign);
    expect((await readVerifiedLog()).at(-1)).toBe('{"late":1}');
    await database.query(`update audit_head set settling_at = now() - interval '2 minutes'`);
    await write(['{"settles":1}']);
    await sealLeaves(db, sign);
    const [head] = await database.query<{ settled: boolean }>('select settled_id > 0 as settled from audit_head');
    expect(head?.settled).toBe(true);
  });

  it('that fails at the end changes nothing', async () => {
    const before = (await readVerifiedLog()).length;
    await write(['{"again":1}']);
    const broken: SignCheckpoint = async () => {
      throw new Error('no key');
    };
    await expect(sealLeaves(db, broken)).rejects.toThrow('no key');
    expect(await readVerifiedLog()).toHaveLength(before);
    await sealLeaves(db, sign);
    expect((await readVerifiedLog()).at(-1)).toBe('{"again":1}');
  });
});

describe('the database', () => {
  it.each([
    'update audit_log set entry = entry',
    'delete from audit_log',
    'truncate audit_log',
    'update audit_nodes set hash = hash',
    'delete from audit_nodes',
    'update audit_checkpoints set note = note',
    'delete from audit_checkpoints',
    'truncate audit_checkpoints',
    'update audit_queue set entry = entry',
    'delete from audit_queue',
    'truncate audit_queue',
  ])('refuses: %s', async (statement) => {
    await expect(database.query(statement)).rejects.toThrow('append-only');
  });

  it('grants changes to nobody, not even to the owner', async () => {
    const rows = await database.query<{ may: boolean }>(
      `select bool_or(acl.privilege_type in ('UPDATE', 'DELETE', 'TRUNCATE')) as may
       from pg_class c cross join aclexplode(c.relacl) acl where c.relname in ('audit_log', 'audit_nodes', 'audit_checkpoints')`,
    );
    expect(rows).toEqual([{ may: false }]);
  });
});
