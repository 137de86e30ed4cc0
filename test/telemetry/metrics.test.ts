import { AggregatorRegistry, Histogram, Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { SPAN_NAMES } from '../../gateway/domain/telemetry.ts';
import { LatencyHistogram } from '../../gateway/telemetry/latency-histogram.ts';
import { Metrics } from '../../gateway/telemetry/metrics.ts';

const NAME = 'oncegate_station_seconds';
/** On a bound, between two, below and above all of them. */
const SECONDS = [0, 0.0005, 0.0004, 0.0011, 0.01, 0.3, 1, 30, 30.5, 100];
const TOOLS = ['world.charge', 'unknown', 'world.charge', 'odd"tool\\name'];

/** What the same observations are in a histogram of prom-client's own. */
function reference(): Registry {
  const registry = new Registry();
  const histogram = new Histogram({
    name: NAME,
    help: 'Time spent at each station of a call; "call" is all of it, as its caller sees it',
    labelNames: ['station', 'tool'],
    buckets: [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
    registers: [registry],
  });
  observeAll((station, tool, seconds) => histogram.observe({ station, tool }, seconds));
  return registry;
}

function observeAll(observe: (station: (typeof SPAN_NAMES)[number], tool: string, seconds: number) => void): void {
  for (const tool of TOOLS)
    for (const station of SPAN_NAMES)
      for (const seconds of SECONDS) if (seconds !== SECONDS[station.length]) observe(station, tool, seconds);
}

const linesOf = (text: string, name: string) => text.split('\n').filter((line) => line.includes(name));

describe('the time at stations', () => {
  it('is told as prom-client would tell it', async () => {
    const metrics = new Metrics();
    observeAll((station, tool, seconds) => metrics.stint(station, tool, seconds));
    const expected = linesOf(await reference().metrics(), NAME);
    expect(expected.length).toBeGreaterThan(400);
    expect(linesOf(await metrics.text(), NAME)).toEqual(expected);
  });

  it('is added up over workers as prom-client would add it up', async () => {
    const times = new LatencyHistogram();
    observeAll((station, tool, seconds) => times.observe(station, tool, seconds));
    const [theirs] = await reference().getMetricsAsJSON();
    // What workers tell the process above them is JSON.
    const ofTwo = async (metric: unknown) =>
      linesOf(await AggregatorRegistry.aggregate(JSON.parse(JSON.stringify([[metric], [metric]]))).metrics(), NAME);
    const expected = await ofTwo(theirs);
    expect(expected.length).toBeGreaterThan(400);
    expect(await ofTwo(await times.get())).toEqual(expected);
  });
});

describe('the number of calls', () => {
  it('is the same however often it is looked at', async () => {
    const metrics = new Metrics();
    for (let i = 0; i < 3; i += 1) metrics.call('world.charge', { state: 'succeeded', replayed: false });
    metrics.call('world.charge', { state: 'succeeded', replayed: true });
    metrics.call('world.charge', { state: 'failed', code: 'tool_failed' });
    metrics.call('unknown', { code: 'denied' });
    const expected = [
      'oncegate_calls_total{tool="world.charge",outcome="succeeded",replayed="false"} 3',
      'oncegate_calls_total{tool="world.charge",outcome="succeeded",replayed="true"} 1',
      'oncegate_calls_total{tool="world.charge",outcome="tool_failed",replayed="false"} 1',
      'oncegate_calls_total{tool="unknown",outcome="denied",replayed="false"} 1',
    ];
    for (let look = 0; look < 2; look += 1)
      expect(linesOf(await metrics.text(), 'oncegate_calls_total{')).toEqual(expected);
  });
});
