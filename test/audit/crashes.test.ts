import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { startUpstream } from '../faults/upstream.ts';
import { createTestDatabase } from '../support/database.ts';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { makeGateway } from '../support/gateway.ts';
import { killSealers } from './kill-sealers.ts';
import { createRandom } from './mutations.ts';

it('two that seal one log, killed again and again, leave one log', async () => {
  const database = await createTestDatabase();
  const home = await mkdtemp(join(tmpdir(), 'oncegate-kills-'));
  onTestFinished(async () => {
    await database.drop();
    await rm(home, { recursive: true, force: true });
  });
  expect(await killSealers({ databaseUrl: database.url, home, kills: 10, random: createRandom(1) })).toEqual([]);
}, 240_000);

it.each(['sealing', 'sealed', 'anchored'])('a gateway that dies when the log is %s goes on with it', async (point) => {
  const upstream = await startUpstream();
  const database = await createTestDatabase();
  const gateway = await makeGateway({ policies: buildFaultPolicies(upstream.url), databaseUrl: database.url });
  onTestFinished(async () => {
    await gateway.dispose();
    await database.drop();
    await upstream.stop();
  });
  // Its boot is what it has to seal first.
  gateway.launch({ ONCEGATE_DIE_AT: point });
  expect(await gateway.waitForExit()).toMatchObject({ signal: 'SIGKILL' });
  const [before] = await database.query<{ note: string | null }>('select max(note) as note from audit_checkpoints');
  expect(before?.note === null).toBe(point === 'sealing');
  await gateway.start();
  const call = await gateway.call('world.keyed', { id: point }, { key: point });
  const proof = await gateway.admin('GET', `/admin/audit/proof?leaf=${call.body.receipt.leaf}`);
  expect(proof.status).toBe(200);
  const { items } = (await gateway.admin('GET', '/admin/audit/entries')).body;
  const boots = items.filter(({ entry }: { entry: { what: string } }) => entry.what === 'booted');
  expect(boots).toHaveLength(2);
});
