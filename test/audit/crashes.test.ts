import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { createRandom } from '../support/random.ts';
import { createDatabaseForTest, startGatewayForTest } from '../support/use-gateway.ts';
import { killSealers } from './kill-sealers.ts';

it('two processes that seal one log leave it consistent although they are killed again and again', async () => {
  const database = await createDatabaseForTest();
  const home = await mkdtemp(join(tmpdir(), 'oncegate-kills-'));
  onTestFinished(() => rm(home, { recursive: true, force: true }));
  expect(await killSealers({ databaseUrl: database.url, home, kills: 10, random: createRandom(1) })).toEqual([]);
}, 240_000);

it.each(['sealing', 'sealed', 'anchored'])(
  'a gateway that dies at the kill point %s continues the log after its restart',
  async (point) => {
    const { database, gateway } = await startGatewayForTest({ start: false });
    // The entry of its start is the first that the gateway seals.
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
  },
);
