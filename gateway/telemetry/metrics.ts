import { AggregatorRegistry, Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { SpanName, SpanResult } from '../domain/telemetry.ts';
import type { Backlog } from '../ledger/audit/backlog.ts';
import { LatencyHistogram } from './latency-histogram.ts';

/** The parts of the gateway that are read when the metrics are read. */
export interface MetricSources {
  readonly breakers: () => readonly { readonly upstream: string; readonly state: 'closed' | 'open' | 'half_open' }[];
  readonly backlog: () => Promise<Backlog>;
}

const BREAKER_VALUES = { closed: 0, half_open: 1, open: 2 } as const;
const BATCH_SIZE_BUCKETS = [1, 2, 4, 8, 16, 32, 64, 128];

/** The number of answers with the same labels. */
interface CallCount {
  readonly labels: { readonly tool: string; readonly outcome: string; readonly replayed: string };
  count: number;
}

/**
 * The Prometheus metrics of this process, in their own registry, so that no library adds metrics. Labels are names from the
 * policies and fixed words, never values of a call.
 */
export class Metrics {
  readonly #registry = new Registry();
  readonly #reloadFailed = this.#gauge(
    'policy_reload_failed',
    'Whether the policies on disk are invalid (1) and older ones are in force',
  );
  readonly #policyInfo = this.#gauge('policy_info', 'The version of the policies in force', ['version']);
  readonly #latencies = this.#registerLatencies();
  readonly #callCounts = new Map<string, CallCount>();
  readonly #calls = new Counter({
    name: 'oncegate_calls_total',
    help: 'Answers to calls: by state, or by the code of the refusal',
    labelNames: ['tool', 'outcome', 'replayed'],
    registers: [this.#registry],
    collect: () => {
      this.#calls.reset();
      for (const { labels, count } of this.#callCounts.values()) this.#calls.inc(labels, count);
    },
  });
  readonly #batches = new Histogram({
    name: 'oncegate_ledger_batch_size',
    help: 'How many claims and outcomes went to PostgreSQL with one commit',
    buckets: BATCH_SIZE_BUCKETS,
    registers: [this.#registry],
  });
  readonly #queued = this.#gauge('ledger_queue_length', 'Claims and outcomes that wait for a batch', [], 'sum');
  constructor() {
    collectDefaultMetrics({ register: this.#registry, prefix: 'oncegate_' });
    AggregatorRegistry.setRegistries([this.#registry]);
  }

  /** Adds the metrics that are collected from other parts of the gateway. */
  addSources({ breakers, backlog }: MetricSources): void {
    const states = this.#gauge('breaker_state', 'Of each upstream: 0 closed, 1 half open, 2 open', ['upstream']);
    Object.assign(states, {
      collect: () => {
        states.reset();
        for (const { upstream, state } of breakers()) states.set({ upstream }, BREAKER_VALUES[state]);
      },
    });
    const open = this.#gauge('open_calls', 'Calls that are not final, by state', ['state']);
    const lag = this.#gauge('recovery_lag_seconds', 'How long the oldest call that is due has been due');
    const queue = this.#gauge('audit_queue_length', 'Log entries that are not in the signed log yet');
    Object.assign(open, {
      collect: async () => {
        // Without the ledger these metrics keep their values. Other metrics show that the ledger is unavailable.
        const current = await backlog().catch(() => undefined);
        if (current === undefined) return;
        open.set({ state: 'held' }, current.held);
        open.set({ state: 'in_doubt' }, current.inDoubt);
        open.set({ state: 'under_way' }, current.underWay);
        lag.set(current.recoveryLag);
        queue.set(current.auditQueue);
      },
    });
  }

  setPolicies(version: string, hasReloadFailed: boolean): void {
    this.#reloadFailed.set(hasReloadFailed ? 1 : 0);
    this.#policyInfo.reset();
    this.#policyInfo.set({ version }, 1);
  }

  observeSpan(name: SpanName, tool: string, seconds: number): void {
    this.#latencies.observe(name, tool, seconds);
  }

  countCall(tool: string, { state, code, replayed }: SpanResult): void {
    const outcome = String(code ?? state);
    const replayedLabel = replayed === true ? 'true' : 'false';
    const key = `${tool} ${outcome} ${replayedLabel}`;
    const existing = this.#callCounts.get(key);
    if (existing !== undefined) existing.count += 1;
    else this.#callCounts.set(key, { labels: { tool, outcome, replayed: replayedLabel }, count: 1 });
  }

  recordBatch(size: number, queued: number): void {
    this.#batches.observe(size);
    this.#queued.set(queued);
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  text(): Promise<string> {
    return this.#registry.metrics();
  }

  #registerLatencies(): LatencyHistogram {
    const histogram = new LatencyHistogram();
    // A registry needs only `name` and `get` of a metric, but its type admits only the metrics of prom-client.
    this.#registry.registerMetric(histogram as unknown as Histogram);
    return histogram;
  }

  /** `aggregator` combines the workers behind one port: `sum` for own values, `max` for values that all read from one place. */
  #gauge<Label extends string = never>(
    name: string,
    help: string,
    labelNames: Label[] = [],
    aggregator: 'max' | 'sum' = 'max',
  ): Gauge<Label> {
    return new Gauge({ name: `oncegate_${name}`, help, labelNames, aggregator, registers: [this.#registry] });
  }
}
