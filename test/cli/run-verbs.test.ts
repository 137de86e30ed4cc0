import { describe, expect, it } from 'vitest';
import { runCli, startCannedServer } from './terminal.ts';

const RUN = {
  run: '7c0e6a52-8a0c-8f00-9a52-0123456789ab',
  agent: 'mover',
  name: 'move the archive',
  epoch: 3,
  drained: true,
  abandoned: false,
  lastSeenAt: '2026-01-01T00:00:00.000Z',
  endedAt: null,
};

describe('runs', () => {
  it('sends the filters', async () => {
    const { env, requests } = await startCannedServer(() => ({ body: { items: [RUN], cursor: null } }));
    expect((await runCli(['runs', '--agent', 'mover', '--abandoned'], { env })).code).toBe(0);
    expect(requests[0]?.url.pathname).toBe('/admin/runs');
    expect(Object.fromEntries(requests[0]?.url.searchParams ?? [])).toEqual({
      agent: 'mover',
      abandoned: 'true',
      limit: '50',
    });
  });

  it.each([
    [{}, 'held'],
    [{ drained: false }, 'draining'],
    [{ drained: false, abandoned: true }, 'abandoned'],
    [{ endedAt: '2026-01-01T00:00:00.000Z' }, 'finished'],
  ])('shows the most urgent state of %j', async (changes, state) => {
    const { env } = await startCannedServer(() => ({ body: { items: [{ ...RUN, ...changes }], cursor: null } }));
    const { out } = await runCli(['runs'], { env });
    expect(out).toContain([RUN.run, state, 'mover', 'move the archive', '3', RUN.lastSeenAt].join('\t'));
    const json = JSON.parse((await runCli(['runs', '--json'], { env })).out);
    expect(json.items[0]).toMatchObject({ run: RUN.run, epoch: 3 });
  });

  it('says so when there are no runs', async () => {
    const { env } = await startCannedServer(() => ({ body: { items: [], cursor: null } }));
    expect((await runCli(['runs'], { env, isTty: true })).out).toContain('No runs yet.');
  });
});
