import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { TestSaga } from '../sagas/saga.ts';
import { buildSagaPolicies } from '../sagas/saga-policies.ts';
import { useGateway } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { type CollectedSpan, OtlpCollector } from './collector.ts';
import { renderTraceSvg } from './render-trace-svg.ts';

const collector = useResource(OtlpCollector.start, (started) => started.stop());
const { upstream, gateway } = useGateway({
  policies: buildSagaPolicies,
  env: () => ({
    OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
    OTEL_BSP_SCHEDULE_DELAY: '50',
    LOG_LEVEL: 'info',
  }),
});

const newTrace = () => {
  const traceId = randomBytes(16).toString('hex');
  const spanId = randomBytes(8).toString('hex');
  return {
    traceId,
    spanId,
    headers: { traceparent: `00-${traceId}-${spanId}-01`, tracestate: 'agent=1', baggage: 'job=7' },
  };
};
const stageOf = ({ attributes }: CollectedSpan) => attributes['oncegate.stage'];
const spansOf = (traceId: string) => collector.spans.filter((span) => span.traceId === traceId);
const waitForStages = (traceId: string, ...stages: string[]) =>
  collector.waitForSpans(() => stages.every((stage) => spansOf(traceId).some((span) => stageOf(span) === stage)));

describe('a call in a trace', () => {
  it('continues the trace of its caller, has a span per stage, and is continued by the upstream', async () => {
    const { traceId, spanId, headers } = newTrace();
    const { body } = await gateway.call('world.charge', { id: 'traced' }, { key: 'traced', headers });
    await waitForStages(traceId, 'call', 'decide', 'claim', 'send', 'settle');
    const [call] = spansOf(traceId).filter((span) => stageOf(span) === 'call');
    expect(call).toMatchObject({ name: 'execute_tool world.charge', parentSpanId: spanId });
    expect(call?.attributes).toMatchObject({
      'gen_ai.operation.name': 'execute_tool',
      'gen_ai.tool.name': 'world.charge',
      'gen_ai.tool.call.id': body.txn,
      'gen_ai.agent.name': 'tester',
      'oncegate.state': 'succeeded',
    });
    for (const span of spansOf(traceId)) if (span !== call) expect(span.parentSpanId).toBe(call?.spanId);
    const [request] = await upstream.requests('traced');
    expect(request?.headers).toMatchObject({
      traceparent: `00-${traceId}-${call?.spanId}-01`,
      tracestate: 'agent=1',
      baggage: 'job=7',
    });
  });

  it('is sent again with the same trace context, and the recovered call is part of the trace', async () => {
    const { traceId, headers } = newTrace();
    await gateway.kill();
    await gateway.start({ ONCEGATE_DIE_AT: 'answered' });
    await gateway.call('world.charge', { id: 'recovered' }, { key: 'recovered', headers }).catch(() => {});
    await gateway.waitForExit();
    await gateway.start();
    await waitForStages(traceId, 'recover');
    const [recovered] = spansOf(traceId).filter((span) => stageOf(span) === 'recover');
    expect(recovered?.links).toMatchObject([{ traceId, spanId: recovered?.parentSpanId }]);
    const requests = await upstream.requests('recovered');
    expect(new Set(requests.map((request) => request.headers['traceparent']))).toHaveLength(1);
    expect(await upstream.effects('recovered')).toHaveLength(1);
  });

  it('that is undone has its compensation in the same trace', async () => {
    const { traceId, spanId, headers } = newTrace();
    const startedAt = Date.now();
    const saga = await TestSaga.open(gateway);
    await saga.callStep('world.charge', { id: 'undone' }, { key: 'undone', headers });
    const { body } = await saga.rollback({ reason: 'to see it in the trace' });
    expect(body.state).toBe('rolled_back');
    await waitForStages(traceId, 'call', 'undo');
    await collector.waitForSpans(() => spansOf(traceId).filter((span) => stageOf(span) === 'send').length === 2);
    const spans = spansOf(traceId);
    const [call] = spans.filter((span) => stageOf(span) === 'call');
    const [undo] = spans.filter((span) => stageOf(span) === 'undo');
    expect(undo).toMatchObject({ name: 'execute_tool world.refund', parentSpanId: call?.spanId });
    expect(undo?.links).toMatchObject([{ traceId, spanId: call?.spanId }]);
    if (process.env['UPDATE'] === '1') await writeTraceSvg({ traceId, spanId }, spans, startedAt);
  });

  it('shows a refusal, and ignores a malformed trace context', async () => {
    const { traceId, headers } = newTrace();
    await gateway.call('nobody.nothing', {}, { headers });
    await waitForStages(traceId, 'call', 'decide');
    const [call] = spansOf(traceId).filter((span) => stageOf(span) === 'call');
    expect(call?.attributes).toMatchObject({ 'oncegate.code': 'denied', 'error.type': 'denied' });
    const answer = await gateway.call('world.charge', { id: 'odd' }, { headers: { traceparent: '00-zz-1-1' } });
    expect(answer.status).toBe(200);
    const [request] = await upstream.requests('odd');
    expect(request?.headers['traceparent']).toMatch(/^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$/);
  });
});

/** Writes the chart of the docs from the spans of this run. The bars of agent and service come from the test's own times. */
async function writeTraceSvg(
  root: { traceId: string; spanId: string },
  spans: readonly CollectedSpan[],
  startedAt: number,
) {
  const start = Math.min(startedAt, ...spans.map((span) => span.start));
  const end = Math.max(...spans.map((span) => span.end)) + 0.5;
  const common = { kind: 1, traceId: root.traceId, links: [], attributes: {} };
  const agent = {
    ...common,
    name: 'agent: a job that is undone',
    spanId: root.spanId,
    parentSpanId: undefined,
    start,
    end,
  };
  const requests = await upstream.requests('undone');
  const sends = spans.filter((span) => stageOf(span) === 'send').sort((a, b) => a.start - b.start);
  const served = requests.map((request, i) => ({
    ...common,
    name: `service: ${request.method} ${request.url}`,
    spanId: `service-${i}`,
    parentSpanId: sends[i]?.spanId,
    start: request.at,
    end: sends[i]?.end ?? request.at,
  }));
  await writeFile(
    'docs/operations/trace.svg',
    renderTraceSvg([agent, ...spans, ...served], 'One trace: agent, gateway, service, undo'),
  );
}

describe('metrics', () => {
  it('have labels for tools and stages, and never values of a call', async () => {
    await gateway.call('world.charge', { id: 'secret-argument' }, { key: 'secret-key' });
    await gateway.call('world.charge', { id: 'secret-argument' }, { key: 'secret-key' });
    await gateway.call('invented.tool-name', {}, {});
    const { body } = await gateway.request('GET', '/metrics');
    expect(body).toMatch(/oncegate_stage_seconds_count\{stage="send",tool="world.charge"\} [1-9]/);
    expect(body).toMatch(/oncegate_calls_total\{tool="world.charge",outcome="succeeded",replayed="true"\} 1/);
    expect(body).toMatch(/oncegate_calls_total\{tool="unknown",outcome="denied",replayed="false"\} [1-9]/);
    expect(body).toMatch(/oncegate_breaker_state\{upstream="world"\} 0/);
    for (const name of ['open_calls', 'recovery_lag_seconds', 'audit_queue_length', 'ledger_batch_size_bucket'])
      expect(body).toContain(`oncegate_${name}`);
    expect(body).not.toMatch(/secret-|invented/);
  });
});

describe('the log', () => {
  it('has one line per call: agent, tool, state and durations', async () => {
    const { body } = await gateway.call('world.charge', { id: 'logged-argument' }, { key: 'logged-key' });
    const lines = () => gateway.output.split('\n').filter((line) => line.includes(body.txn));
    while (lines().length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    expect(lines()).toHaveLength(1);
    const line = JSON.parse(lines()[0] ?? '');
    expect(line).toMatchObject({
      msg: 'call',
      tool: 'world.charge',
      agent: 'tester',
      state: 'succeeded',
      replayed: false,
    });
    expect(Object.keys(line.ms).sort()).toEqual(['call', 'claim', 'decide', 'send', 'settle']);
    expect(gateway.output).not.toMatch(/logged-argument|logged-key/);
  });
});

describe('the dashboard and the alerts', () => {
  it.each(['docs/operations/dashboard.json', 'docs/operations/alerts.yaml'])(
    '%s uses only metrics that exist',
    async (file) => {
      const { body } = await gateway.request('GET', '/metrics');
      const named = [...(await readFile(file, 'utf8')).matchAll(/\boncegate_[a-z0-9_]+/g)].map(([name]) => name);
      expect(named.length).toBeGreaterThan(5);
      for (const name of named) expect(body).toMatch(new RegExp(`^${name}[{ ]`, 'm'));
    },
  );
});
