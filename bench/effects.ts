import { startUpstream, type Upstream } from '../test/faults/upstream.ts';
import { type Contestant, dbos, type Help, oncegate, type Place, restate } from './contestants.ts';

const FAULTS = { killed: 'killed after the effect', lost: 'the answer is lost' };
const HELPS: Readonly<Record<Help, string>> = { none: 'takes no key', key: 'honours the key', probe: 'can be asked' };
const COLUMNS = [26, 17, 26, 9, 36];

/**
 * One call, a fault after its effect and before anybody has written it down, and the caller's second try with the same key:
 * how often the thing was done, and what the caller was told.
 */
export async function countEffects(place: Place): Promise<string> {
  const upstream = await startUpstream();
  place.closing.push(() => upstream.stop());
  const lines = [row(['', 'service behind', 'fault', 'effects', 'told at first', 'told at the second try'])];
  for (const help of ['none', 'key', 'probe'] as const) {
    const contestants = [await oncegate(help, upstream.url, place)];
    if (help !== 'probe') {
      contestants.push(await restate(help, upstream.url, place));
      contestants.push(await dbos(help, upstream.url, place, false), await dbos(help, upstream.url, place, true));
    }
    for (const contestant of contestants) {
      for (const fault of ['killed', 'lost'] as const) {
        const { effects, told } = await suffer(contestant, fault, upstream);
        lines.push(row([contestant.name, HELPS[help], FAULTS[fault], String(effects), ...told]));
        process.stderr.write('.');
      }
    }
  }
  process.stderr.write('\n');
  return lines.join('\n');
}

async function suffer(contestant: Contestant, fault: keyof typeof FAULTS, upstream: Upstream) {
  const id = `${contestant.name}-${contestant.help}-${fault}`;
  const life = await contestant.start();
  const fate = fault === 'killed' ? { kill: life.pid } : 'drop';
  await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', fate] });
  const asked = ask(contestant, id);
  let last = life;
  if (fault === 'killed') {
    await life.gone();
    last = await contestant.start();
  }
  const first = await asked;
  const second = await ask(contestant, id);
  const effects = await upstream.effects(id);
  process.kill(last.pid, 'SIGKILL');
  await last.gone();
  return { effects: effects.length, told: [first, second] };
}

async function ask({ request }: Contestant, id: string): Promise<string> {
  const answer = await fetch(request.url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': id, ...request.headers },
    body: JSON.stringify({ id }),
    signal: AbortSignal.timeout(60_000),
  }).catch(() => undefined);
  if (answer === undefined) return 'nothing: the connection broke';
  const body = (await answer.json()) as { code?: string; message?: string; t?: string };
  const state = answer.headers.get('oncegate-state');
  if (answer.ok && state !== 'in_doubt') return `${answer.status}, the answer`;
  return `${answer.status} ${body.code ?? body.message ?? ''}`;
}

function row(cells: readonly string[]): string {
  return cells
    .map((cell, i) => cell.padEnd(COLUMNS[i] ?? 0))
    .join('')
    .trimEnd();
}
