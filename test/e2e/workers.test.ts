import { readdir, readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { pollUntil } from '../support/poll.ts';
import { useGateway } from '../support/use-gateway.ts';

const { upstream, database, gateway } = useGateway({ env: { ONCEGATE_WORKERS: '2' } });

/** The pids of the running children of a process. */
async function listChildren(pid: number): Promise<number[]> {
  const found: number[] = [];
  for (const entry of await readdir('/proc')) {
    const stat = /^\d+$/.test(entry) ? await readFile(`/proc/${entry}/stat`, 'utf8').catch(() => '') : '';
    const [, state, parent] = /\) (\S) (\d+)/.exec(stat) ?? [];
    if (Number(parent) === pid && state !== 'Z') found.push(Number(entry));
  }
  return found.sort();
}

describe('worker processes behind one port', () => {
  it('serve the metrics of all workers', async () => {
    for (let i = 0; i < 40; i += 1) await gateway.call('world.keyed', { id: `m-${i}` }, { key: `m-${i}` });
    const { body } = await gateway.request('GET', '/metrics');
    expect(body).toMatch(/oncegate_calls_total\{tool="world.keyed",outcome="succeeded",replayed="false"\} 40\n/);
    expect(body).toMatch(/oncegate_open_calls\{state="in_doubt"\} 0\n/);
  });

  it('treat the same key on any worker as one call', async () => {
    const replies = await Promise.all(
      Array.from({ length: 100 }, () => gateway.call('world.keyed', { id: 'w-1' }, { key: 'w-1' })),
    );
    expect(new Set(replies.map((reply) => reply.status))).toEqual(new Set([200]));
    expect(new Set(replies.map((reply) => JSON.stringify(reply.body.result))).size).toBe(1);
    expect(replies.filter((reply) => reply.headers.get('idempotent-replayed') === null)).toHaveLength(1);
    expect(await upstream.effects('w-1')).toHaveLength(1);
    const owners = await database.query<{ n: number }>(
      'select count(*)::int as n from processes where ended_at is null',
    );
    expect(owners[0]?.n).toBe(2);
  });

  it('are replaced when they die, and their calls continue', async () => {
    const before = await listChildren(gateway.pid);
    expect(before).toHaveLength(2);
    await upstream.plan({ match: { id: 'w-2' }, do: ['apply', { event: 'w-2 applied' }, { delay: 60_000 }] });
    const lost = gateway.call('world.keyed', { id: 'w-2' }, { key: 'w-2' }).catch(() => undefined);
    await upstream.awaitEvent('w-2 applied');
    for (const pid of before) process.kill(pid, 'SIGKILL');
    await lost;
    const after = await pollUntil(
      () => listChildren(gateway.pid),
      (pids) => pids.length === 2 && !pids.some((pid) => before.includes(pid)),
    );
    expect(after).not.toEqual(before);
    await gateway.waitUntilReady();
    const again = await gateway.call('world.keyed', { id: 'w-2' }, { key: 'w-2' });
    expect(again.body).toMatchObject({ state: 'succeeded', replayed: true });
    expect(await upstream.effects('w-2')).toHaveLength(1);
  });

  it('end with their parent process, however it ends', async () => {
    const workers = await listChildren(gateway.pid);
    await gateway.kill();
    const findRunning = async () => (await Promise.all(workers.map((pid) => isRunning(pid)))).filter(Boolean);
    expect(await pollUntil(findRunning, (left) => left.length === 0)).toEqual([]);
    await gateway.start();
    const next = await listChildren(gateway.pid);
    expect(await gateway.stop()).toEqual({ code: 0, signal: null });
    expect((await Promise.all(next.map((pid) => isRunning(pid)))).filter(Boolean)).toEqual([]);
  });

  it('must be a number, or the gateway refuses to start', async () => {
    gateway.launch({ ONCEGATE_WORKERS: 'many' });
    expect(await gateway.waitForExit()).toEqual({ code: 1, signal: null });
    expect(gateway.output).toContain('ONCEGATE_WORKERS: "many" is not a number of processes');
  });

  it.each(['SIGINT', 'SIGTERM'] as const)('can be stopped while they load, as with Ctrl-C: %s', async (signal) => {
    if (gateway.isAlive) await gateway.stop();
    gateway.output = '';
    gateway.launch();
    const loading = await pollUntil(
      () => listChildren(gateway.pid),
      (pids) => pids.length === 2,
    );
    for (const pid of [gateway.pid, ...loading]) process.kill(pid, signal);
    expect(await gateway.waitForExit()).toEqual({ code: 0, signal: null });
    expect(gateway.output).not.toContain('did not start');
    expect((await Promise.all(loading.map((pid) => isRunning(pid)))).filter(Boolean)).toEqual([]);
  });

  it('report a failed start once', async () => {
    gateway.output = '';
    gateway.launch({ ONCEGATE_POLICIES: '/nonexistent-policies' });
    expect(await gateway.waitForExit()).toMatchObject({ code: 1 });
    expect(gateway.output.match(/did not start/g)).toHaveLength(1);
  });
});

async function isRunning(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  return stat !== '' && !/\) Z /.test(stat);
}
