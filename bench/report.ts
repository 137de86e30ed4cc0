import { median } from './load.ts';
import type { CaseMeasurement } from './measure.ts';
import { readResidentMiB } from './processes.ts';
import type { MeasuredSystem } from './systems.ts';

export interface ResultLine {
  readonly system: string;
  readonly call: 'first' | 'replay';
  readonly atOnce: number;
  /** Calls per second: the median of the rounds. */
  readonly perSecond: number;
  /** The slowest round. */
  readonly least: number;
  /** The fastest round. */
  readonly most: number;
  /** The rate as a share of the proxy without ledger: the median of the rounds. */
  readonly ofProxy: number;
  readonly p50: number;
  readonly p99: number;
}

export interface BenchResults {
  /** The machine, and the versions of what ran on it. */
  readonly on: Readonly<Record<string, string | number>>;
  readonly rounds: number;
  readonly decisionMicros: number;
  readonly lines: readonly ResultLine[];
  readonly residentMiB: Readonly<Record<string, number>>;
}

export async function buildResults(
  systems: readonly MeasuredSystem[],
  measured: readonly CaseMeasurement[],
  about: Pick<BenchResults, 'on' | 'rounds' | 'decisionMicros'>,
): Promise<BenchResults> {
  const rate = ({ samples }: CaseMeasurement) => median(samples.map((sample) => sample.perSecond));
  const resident: Record<string, number> = {};
  for (const { name, pids } of systems) {
    const mib = pids.length === 0 ? undefined : await readResidentMiB(pids);
    if (mib !== undefined) resident[name] = mib;
  }
  return {
    ...about,
    decisionMicros: roundTo(about.decisionMicros, 1),
    lines: measured.map((one) => ({
      system: one.system,
      call: one.call,
      atOnce: one.atOnce,
      perSecond: roundTo(rate(one), 0),
      least: roundTo(Math.min(...one.samples.map((sample) => sample.perSecond)), 0),
      most: roundTo(Math.max(...one.samples.map((sample) => sample.perSecond)), 0),
      ofProxy: roundTo(median(one.ofProxy), 2),
      p50: roundTo(median(one.samples.map((sample) => sample.p50)), 2),
      p99: roundTo(median(one.samples.map((sample) => sample.p99)), 2),
    })),
    residentMiB: resident,
  };
}

export function renderTable({ lines, rounds, decisionMicros, residentMiB: resident }: BenchResults): string {
  const text: string[] = [];
  for (const atOnce of new Set(lines.map((line) => line.atOnce))) {
    const title = `${atOnce} in flight, median of ${rounds}`;
    text.push('', renderRow(title, ['calls/s', 'spread', 'of proxy', 'p50 ms', 'p99 ms']));
    for (const line of lines.filter((one) => one.atOnce === atOnce)) {
      const { system, call, perSecond, least, most, ofProxy, p50, p99 } = line;
      const columns = [`${perSecond}`, `${least}–${most}`, ofProxy.toFixed(2), p50.toFixed(2), p99.toFixed(2)];
      text.push(renderRow(call === 'replay' ? `${system}, replay` : system, columns));
    }
  }
  text.push('', `${'resident memory, without PostgreSQL'.padEnd(36)}      MiB`);
  for (const [system, mib] of Object.entries(resident)) text.push(renderRow(system, [`${mib}`]));
  text.push('', `One decision over 200 rules takes ${decisionMicros} µs.`);
  return text.join('\n');
}

function renderRow(name: string, columns: readonly string[]): string {
  const widths = [9, 14, 10, 9, 9];
  return name.padEnd(36) + columns.map((column, i) => column.padStart(widths[i] ?? 9)).join('');
}

function roundTo(value: number, digits: number): number {
  return Number(value.toFixed(digits));
}
