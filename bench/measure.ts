import { randomUUID } from 'node:crypto';
import type { Sample } from './load.ts';
import type { MeasuredSystem } from './systems.ts';

export interface CaseMeasurement {
  readonly system: string;
  readonly call: 'first' | 'replay';
  readonly atOnce: number;
  readonly samples: Sample[];
  /** Of each sample: how fast it was beside the proxy without ledger, which was measured right before it. */
  readonly ofProxy: number[];
}

interface MeasureOptions {
  /** Calls of a run with 64 at once, and of one with one after the other. */
  readonly total: number;
  readonly alone: number;
  readonly rounds: number;
  readonly warm: boolean;
}

/**
 * Every case once, then every case again, and the first system before each of the others: what disturbs the machine for a minute disturbs
 * both of those that are compared, and what disturbs it longer, all of them.
 */
export async function measure(systems: readonly MeasuredSystem[], extent: MeasureOptions): Promise<CaseMeasurement[]> {
  const cases = [64, 1].flatMap((atOnce) => systems.flatMap((system) => buildCases(system, atOnce, extent)));
  for (let round = extent.warm ? 0 : 1; round <= extent.rounds; round += 1) {
    for (const { run, measured } of cases) {
      const base = cases.find((one) => one.measured.atOnce === measured.atOnce);
      if (base === undefined || base.measured === measured) continue;
      const beside = await base.run();
      const sample = await run();
      if (round === 0) continue;
      base.measured.samples.push(beside);
      base.measured.ofProxy.push(1);
      measured.samples.push(sample);
      measured.ofProxy.push(sample.perSecond / beside.perSecond);
    }
    process.stderr.write(round === 0 ? 'warm\n' : `round ${round} of ${extent.rounds}\n`);
  }
  return cases.map(({ measured }) => measured);
}

function buildCases(system: MeasuredSystem, atOnce: number, extent: MeasureOptions) {
  const share = system.isSlow ? 3 : 1;
  const total = Math.ceil((atOnce === 1 ? extent.alone : extent.total) / share);
  const measured = (call: 'first' | 'replay'): CaseMeasurement => ({
    system: system.name,
    call,
    atOnce,
    samples: [],
    ofProxy: [],
  });
  const { replay } = system;
  return [
    { measured: measured('first'), run: () => system.first(randomUUID(), total, atOnce) },
    ...(replay === undefined ? [] : [{ measured: measured('replay'), run: () => replay(total, atOnce) }]),
  ];
}
