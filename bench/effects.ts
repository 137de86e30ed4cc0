import { startUpstream, type TestUpstream } from '../test/faults/upstream.ts';
import {
  type ComparedSystem,
  type EffectsBenchSetup,
  prepareDbos,
  prepareOncegate,
  prepareRestate,
  type UpstreamSupport,
} from './compared-systems.ts';

const FAULT_LABELS = { killed: 'killed after the effect', lost: 'answer lost' };
const SUPPORT_LABELS: Readonly<Record<UpstreamSupport, string>> = {
  none: 'no key, no probe',
  key: 'honours the key',
  probe: 'can be probed',
};
const COLUMN_WIDTHS = [26, 17, 26, 9, 36];

/**
 * Makes one call with a fault after its effect and before its record, and repeats the call with the same key. The report
 * has the number of effects and both answers.
 */
export async function countEffects(setup: EffectsBenchSetup): Promise<string> {
  const upstream = await startUpstream();
  setup.cleanups.push(() => upstream.stop());
  const lines = [renderRow(['', 'upstream', 'fault', 'effects', 'first answer', 'second answer'])];
  for (const support of ['none', 'key', 'probe'] as const) {
    const systems = [await prepareOncegate(support, upstream.url, setup)];
    if (support !== 'probe') {
      systems.push(await prepareRestate(support, upstream.url, setup));
      systems.push(
        await prepareDbos(support, upstream.url, setup, false),
        await prepareDbos(support, upstream.url, setup, true),
      );
    }
    for (const system of systems) {
      for (const fault of ['killed', 'lost'] as const) {
        const { effects, answers } = await injectFault(system, fault, upstream);
        lines.push(renderRow([system.name, SUPPORT_LABELS[support], FAULT_LABELS[fault], String(effects), ...answers]));
        process.stderr.write('.');
      }
    }
  }
  process.stderr.write('\n');
  return lines.join('\n');
}

async function injectFault(system: ComparedSystem, fault: keyof typeof FAULT_LABELS, upstream: TestUpstream) {
  const id = `${system.name}-${system.support}-${fault}`;
  const running = await system.start();
  const action = fault === 'killed' ? { kill: running.pid } : 'drop';
  await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', action] });
  const firstAnswer = sendCall(system, id);
  let last = running;
  if (fault === 'killed') {
    await running.waitForExit();
    last = await system.start();
  }
  const first = await firstAnswer;
  const second = await sendCall(system, id);
  const effects = await upstream.effects(id);
  process.kill(last.pid, 'SIGKILL');
  await last.waitForExit();
  return { effects: effects.length, answers: [first, second] };
}

async function sendCall({ request }: ComparedSystem, id: string): Promise<string> {
  const answer = await fetch(request.url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'idempotency-key': id, ...request.headers },
    body: JSON.stringify({ id }),
    signal: AbortSignal.timeout(60_000),
  }).catch(() => undefined);
  if (answer === undefined) return 'none: the connection broke';
  const body = (await answer.json()) as { code?: string; message?: string; t?: string };
  const state = answer.headers.get('oncegate-state');
  if (answer.ok && state !== 'in_doubt') return `${answer.status} with the result`;
  return `${answer.status} ${body.code ?? body.message ?? ''}`;
}

function renderRow(cells: readonly string[]): string {
  return cells
    .map((cell, i) => cell.padEnd(COLUMN_WIDTHS[i] ?? 0))
    .join('')
    .trimEnd();
}
