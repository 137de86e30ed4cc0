import { startUpstream, type TestUpstream } from '../test/faults/upstream.ts';
import {
  type ComparedSystem,
  type EffectsBenchSetup,
  prepareDbos,
  prepareOncegate,
  prepareRestate,
  type UpstreamSupport,
} from './contestants.ts';

const FAULT_LABELS = { killed: 'killed after the effect', lost: 'the answer is lost' };
const SUPPORT_LABELS: Readonly<Record<UpstreamSupport, string>> = {
  none: 'takes no key',
  key: 'honours the key',
  probe: 'can be asked',
};
const COLUMN_WIDTHS = [26, 17, 26, 9, 36];

/**
 * One call, a fault after its effect and before anybody has written it down, and the caller's second try with the same key:
 * how often the thing was done, and what the caller was told.
 */
export async function countEffects(place: EffectsBenchSetup): Promise<string> {
  const upstream = await startUpstream();
  place.closing.push(() => upstream.stop());
  const lines = [renderRow(['', 'service behind', 'fault', 'effects', 'told at first', 'told at the second try'])];
  for (const help of ['none', 'key', 'probe'] as const) {
    const contestants = [await prepareOncegate(help, upstream.url, place)];
    if (help !== 'probe') {
      contestants.push(await prepareRestate(help, upstream.url, place));
      contestants.push(
        await prepareDbos(help, upstream.url, place, false),
        await prepareDbos(help, upstream.url, place, true),
      );
    }
    for (const contestant of contestants) {
      for (const fault of ['killed', 'lost'] as const) {
        const { effects, told } = await injectFault(contestant, fault, upstream);
        lines.push(renderRow([contestant.name, SUPPORT_LABELS[help], FAULT_LABELS[fault], String(effects), ...told]));
        process.stderr.write('.');
      }
    }
  }
  process.stderr.write('\n');
  return lines.join('\n');
}

async function injectFault(contestant: ComparedSystem, fault: keyof typeof FAULT_LABELS, upstream: TestUpstream) {
  const id = `${contestant.name}-${contestant.help}-${fault}`;
  const life = await contestant.start();
  const fate = fault === 'killed' ? { kill: life.pid } : 'drop';
  await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', fate] });
  const asked = sendCall(contestant, id);
  let last = life;
  if (fault === 'killed') {
    await life.gone();
    last = await contestant.start();
  }
  const first = await asked;
  const second = await sendCall(contestant, id);
  const effects = await upstream.effects(id);
  process.kill(last.pid, 'SIGKILL');
  await last.gone();
  return { effects: effects.length, told: [first, second] };
}

async function sendCall({ request }: ComparedSystem, id: string): Promise<string> {
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

function renderRow(cells: readonly string[]): string {
  return cells
    .map((cell, i) => cell.padEnd(COLUMN_WIDTHS[i] ?? 0))
    .join('')
    .trimEnd();
}
