import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import type { Reply } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { checkInvariants, type ObservedCall } from './checker.ts';

const { upstream, gateway } = useGateway({ database: 'embedded' });

const KINDS = { key: 'world.keyed', idempotent: 'world.put', probe: 'world.probed', none: 'world.none' } as const;

/** An agent that repeats each call with its key until it hears something that is not "ask again". */
async function insist(kind: keyof typeof KINDS, id: string): Promise<Reply[]> {
  const answers: Reply[] = [];
  const until = performance.now() + 40_000;
  while (performance.now() < until) {
    const answer = await gateway.call(KINDS[kind], { id }, { key: id, headers: { prefer: 'wait=5' } });
    answers.push(answer);
    const more =
      answer.status === 503 ||
      answer.status === 409 ||
      answer.status === 202 ||
      (answer.status === 504 && kind !== 'none');
    if (!more) return answers;
    await sleep(50);
  }
  return answers;
}

it('PostgreSQL killed and restarted under load: every call happens once, and is told truthfully', async () => {
  const calls: { kind: keyof typeof KINDS; id: string; answers: Promise<Reply[]> }[] = [];
  for (const [i, signal] of (['SIGKILL', 'SIGQUIT', 'SIGKILL'] as const).entries()) {
    const kinds = Object.keys(KINDS) as (keyof typeof KINDS)[];
    for (let n = 0; n < 60; n += 1) {
      const kind = kinds[n % kinds.length] ?? 'key';
      const id = `pg-${i}-${n}`;
      calls.push({ kind, id, answers: insist(kind, id) });
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
    const heard = await answers;
    const last = heard.at(-1);
    expect(kind === 'none' ? [200, 504] : [200], `${kind} ${id}`).toContain(last?.status);
    observed.push({
      txn: last?.headers.get('oncegate-txn') ?? '',
      id,
      kind,
      states: heard.map((answer) => answer.headers.get('oncegate-state')).filter((state) => state !== null),
      answers: heard.map((answer) => ({
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
