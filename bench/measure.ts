import { randomUUID } from 'node:crypto';
import type { Sample } from './load.ts';
import type { MeasuredSystem } from './systems.ts';

export interface CaseMeasurement {
  readonly system: string;
  readonly call: 'first' | 'replay';
  readonly atOnce: number;
  readonly samples: Sample[];
  /** The rate of each sample as a share of the proxy without ledger, measured right before it. */
  readonly ofProxy: number[];
}

interface MeasureOptions {
  /** Calls of a run with 64 in flight. */
  readonly total: number;
  /** Calls of a run with one in flight. */
  readonly alone: number;
  readonly rounds: number;
  readonly hasWarmUp: boolean;
}

/**
 * Runs all cases once per round, and the baseline right before each of them. A short disturbance of the machine then affects a
 * case and its baseline alike, and a long one affects all cases.
 */
export async function measure(systems: readonly MeasuredSystem[], options: MeasureOptions): Promise<CaseMeasurement[]> {
  const cases = [64, 1].flatMap((atOnce) => systems.flatMap((system) => buildCases(system, atOnce, options)));
  for (let round = options.hasWarmUp ? 0 : 1; round <= options.rounds; round += 1) {
    for (const { run, measured } of cases) {
      const base = cases.find((one) => one.measured.atOnce === measured.atOnce);
      if (base === undefined || base.measured === measured) continue;
      const baseline = await base.run();
      const sample = await run();
      if (round === 0) continue;
      base.measured.samples.push(baseline);
      base.measured.ofProxy.push(1);
      measured.samples.push(sample);
      measured.ofProxy.push(sample.perSecond / baseline.perSecond);
    }
    process.stderr.write(round === 0 ? 'warm-up done\n' : `round ${round} of ${options.rounds}\n`);
  }
  return cases.map(({ measured }) => measured);
}

function buildCases(system: MeasuredSystem, atOnce: number, options: MeasureOptions) {
  const divisor = system.isSlow ? 3 : 1;
  const total = Math.ceil((atOnce === 1 ? options.alone : options.total) / divisor);
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
