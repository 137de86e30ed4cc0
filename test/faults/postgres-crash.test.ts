import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import type { Reply } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { checkInvariants, type ObservedCall } from './checker.ts';

const { upstream, gateway } = useGateway({ database: 'embedded' });

const TOOL_BY_KIND = {
  key: 'world.keyed',
  idempotent: 'world.put',
  probe: 'world.probed',
  none: 'world.none',
} as const;

/** Repeats a call with its key until an answer no longer asks for a retry. Returns all answers. */
async function callUntilSettled(kind: keyof typeof TOOL_BY_KIND, id: string): Promise<Reply[]> {
  const answers: Reply[] = [];
  const deadline = performance.now() + 40_000;
  while (performance.now() < deadline) {
    const answer = await gateway.call(TOOL_BY_KIND[kind], { id }, { key: id, headers: { prefer: 'wait=5' } });
    answers.push(answer);
    const shouldRetry =
      answer.status === 503 ||
      answer.status === 409 ||
      answer.status === 202 ||
      (answer.status === 504 && kind !== 'none');
    if (!shouldRetry) return answers;
    await sleep(50);
  }
  return answers;
}

it('every call happens once and is reported truthfully while PostgreSQL is killed and restarted under load', async () => {
  const calls: { kind: keyof typeof TOOL_BY_KIND; id: string; answers: Promise<Reply[]> }[] = [];
  for (const [i, signal] of (['SIGKILL', 'SIGQUIT', 'SIGKILL'] as const).entries()) {
    const kinds = Object.keys(TOOL_BY_KIND) as (keyof typeof TOOL_BY_KIND)[];
    for (let n = 0; n < 60; n += 1) {
      const kind = kinds[n % kinds.length] ?? 'key';
      const id = `pg-${i}-${n}`;
      calls.push({ kind, id, answers: callUntilSettled(kind, id) });
      if (n === 30) {
        const [pid] = (await readFile(join(gateway.home, 'data/postgres/postmaster.pid'), 'utf8')).split('\n');
        process.kill(Number(pid), signal);
      }
      await sleep(4);
    }
    await Promise.all(calls.map(({ answers }) => answers));
    await gateway.waitUntilReady();
  }

  const observed: ObservedCall[] = [];
  for (const { kind, id, answers } of calls) {
    const received = await answers;
    const last = received.at(-1);
    expect(kind === 'none' ? [200, 504] : [200], `${kind} ${id}`).toContain(last?.status);
    observed.push({
      txn: last?.headers.get('oncegate-txn') ?? '',
      id,
      kind,
      states: received.map((answer) => answer.headers.get('oncegate-state')).filter((state) => state !== null),
      answers: received.map((answer) => ({
        status: answer.status,
        code: answer.body.code,
        body: answer.body,
        replayed: answer.headers.get('idempotent-replayed') === 'true',
      })),
      verdictsNotApplied: 0,
    });
  }
  expect(
    checkInvariants({ calls: observed, requests: await upstream.requests(), effects: await upstream.effects() }),
  ).toEqual([]);
});
