import { AggregatorRegistry, Histogram, Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { SPAN_NAMES } from '../../gateway/domain/telemetry.ts';
import { LatencyHistogram } from '../../gateway/telemetry/latency-histogram.ts';
import { Metrics } from '../../gateway/telemetry/metrics.ts';

const METRIC_NAME = 'oncegate_stage_seconds';
/** Values on a bound, between two bounds, and below and above all bounds. */
const SECONDS = [0, 0.0005, 0.0004, 0.0011, 0.01, 0.3, 1, 30, 30.5, 100];
const TOOLS = ['world.charge', 'unknown', 'world.charge', 'odd"tool\\name'];

/** The same observations in a histogram of prom-client. */
function buildReference(): Registry {
  const registry = new Registry();
  const histogram = new Histogram({
    name: METRIC_NAME,
    help: 'Time spent in each stage of a call; "call" is the whole call, as its caller sees it',
    labelNames: ['stage', 'tool'],
    buckets: [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
    registers: [registry],
  });
  observeAll((spanName, tool, seconds) => histogram.observe({ stage: spanName, tool }, seconds));
  return registry;
}

function observeAll(observe: (spanName: (typeof SPAN_NAMES)[number], tool: string, seconds: number) => void): void {
  for (const tool of TOOLS)
    for (const spanName of SPAN_NAMES)
      for (const seconds of SECONDS) if (seconds !== SECONDS[spanName.length]) observe(spanName, tool, seconds);
}

const linesWith = (text: string, name: string) => text.split('\n').filter((line) => line.includes(name));

describe('the latency histogram', () => {
  it('has the same text as that of prom-client', async () => {
    const metrics = new Metrics();
    observeAll((spanName, tool, seconds) => metrics.observeSpan(spanName, tool, seconds));
    const expected = linesWith(await buildReference().metrics(), METRIC_NAME);
    expect(expected.length).toBeGreaterThan(400);
    expect(linesWith(await metrics.text(), METRIC_NAME)).toEqual(expected);
  });

  it('is summed over workers like that of prom-client', async () => {
    const histogram = new LatencyHistogram();
    observeAll((spanName, tool, seconds) => histogram.observe(spanName, tool, seconds));
    const [reference] = await buildReference().getMetricsAsJSON();
    // Workers send their metrics to the parent process as JSON.
    const sumTwoWorkers = async (metric: unknown) => {
      const workers = JSON.parse(JSON.stringify([[metric], [metric]]));
      return linesWith(await AggregatorRegistry.aggregate(workers).metrics(), METRIC_NAME);
    };
    const expected = await sumTwoWorkers(reference);
    expect(expected.length).toBeGreaterThan(400);
    expect(await sumTwoWorkers(await histogram.get())).toEqual(expected);
  });
});

describe('the number of calls', () => {
  it('is the same however often it is read', async () => {
    const metrics = new Metrics();
    for (let i = 0; i < 3; i += 1) metrics.countCall('world.charge', { state: 'succeeded', replayed: false });
    metrics.countCall('world.charge', { state: 'succeeded', replayed: true });
    metrics.countCall('world.charge', { state: 'failed', code: 'tool_failed' });
    metrics.countCall('unknown', { code: 'denied' });
    const expected = [
      'oncegate_calls_total{tool="world.charge",outcome="succeeded",replayed="false"} 3',
      'oncegate_calls_total{tool="world.charge",outcome="succeeded",replayed="true"} 1',
      'oncegate_calls_total{tool="world.charge",outcome="tool_failed",replayed="false"} 1',
      'oncegate_calls_total{tool="unknown",outcome="denied",replayed="false"} 1',
    ];
    for (let read = 0; read < 2; read += 1)
      expect(linesWith(await metrics.text(), 'oncegate_calls_total{')).toEqual(expected);
  });
});
