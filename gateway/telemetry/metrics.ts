import { AggregatorRegistry, Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { SpanName, SpanResult } from '../domain/telemetry.ts';
import type { Backlog } from '../ledger/audit/backlog.ts';
import { LatencyHistogram } from './latency-histogram.ts';

/** What is asked of the rest of the gateway when somebody looks. */
export interface MetricSources {
  readonly breakers: () => readonly { readonly upstream: string; readonly state: 'closed' | 'open' | 'half_open' }[];
  readonly backlog: () => Promise<Backlog>;
}

const BREAKER = { closed: 0, half_open: 1, open: 2 } as const;
const SIZES = [1, 2, 4, 8, 16, 32, 64, 128];

/** How many calls were answered in one way. */
interface Tally {
  readonly labels: { readonly tool: string; readonly outcome: string; readonly replayed: string };
  count: number;
}

/**
 * What Prometheus may ask of this process. One registry of its own: nothing is counted behind the gateway's back. Labels are
 * names from policies and fixed words, never anything that came with a call.
 */
export class Metrics {
  readonly #registry = new Registry();
  readonly #reloadFailed = this.#gauge(
    'policy_reload_failed',
    'Whether the policies on disk are refused (1) and older ones are in force',
  );
  readonly #policyInfo = this.#gauge('policy_info', 'The version of the policies in force', ['version']);
  readonly #stints = this.#times();
  readonly #tallies = new Map<string, Tally>();
  readonly #calls = new Counter({
    name: 'oncegate_calls_total',
    help: 'Answers to calls: by state, or by the code of the refusal',
    labelNames: ['tool', 'outcome', 'replayed'],
    registers: [this.#registry],
    collect: () => {
      this.#calls.reset();
      for (const { labels, count } of this.#tallies.values()) this.#calls.inc(labels, count);
    },
  });
  readonly #batches = new Histogram({
    name: 'oncegate_ledger_batch_size',
    help: 'How many claims and outcomes went to PostgreSQL with one commit',
    buckets: SIZES,
    registers: [this.#registry],
  });
  readonly #queued = this.#gauge('ledger_queue_length', 'Claims and outcomes that wait for a batch', [], 'sum');
  constructor() {
    collectDefaultMetrics({ register: this.#registry, prefix: 'oncegate_' });
    AggregatorRegistry.setRegistries([this.#registry]);
  }

  /** From now on these are asked whenever somebody looks. */
  sound({ breakers, backlog }: MetricSources): void {
    const states = this.#gauge('breaker_state', 'Of each upstream: 0 closed, 1 half open, 2 open', ['upstream']);
    Object.assign(states, {
      collect: () => {
        states.reset();
        for (const { upstream, state } of breakers()) states.set({ upstream }, BREAKER[state]);
      },
    });
    const open = this.#gauge('open_calls', 'Calls that are not final, by state', ['state']);
    const lag = this.#gauge('recovery_lag_seconds', 'How long the oldest call that is due has been due');
    const queue = this.#gauge('audit_queue_length', 'Log entries that are not in the signed log yet');
    Object.assign(open, {
      collect: async () => {
        // Without the ledger these stay as they were; that it is gone is told by what else fails.
        const found = await backlog().catch(() => undefined);
        if (found === undefined) return;
        open.set({ state: 'held' }, found.held);
        open.set({ state: 'in_doubt' }, found.inDoubt);
        open.set({ state: 'under_way' }, found.underWay);
        lag.set(found.recoveryLag);
        queue.set(found.auditQueue);
      },
    });
  }

  policies(version: string, refused: boolean): void {
    this.#reloadFailed.set(refused ? 1 : 0);
    this.#policyInfo.reset();
    this.#policyInfo.set({ version }, 1);
  }

  stint(station: SpanName, tool: string, seconds: number): void {
    this.#stints.observe(station, tool, seconds);
  }

  call(tool: string, { state, code, replayed }: SpanResult): void {
    const outcome = String(code ?? state);
    const again = replayed === true ? 'true' : 'false';
    const name = `${tool} ${outcome} ${again}`;
    const tally = this.#tallies.get(name);
    if (tally === undefined) this.#tallies.set(name, { labels: { tool, outcome, replayed: again }, count: 1 });
    else tally.count += 1;
  }

  batch(size: number, queued: number): void {
    this.#batches.observe(size);
    this.#queued.set(queued);
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  text(): Promise<string> {
    return this.#registry.metrics();
  }

  #times(): LatencyHistogram {
    const times = new LatencyHistogram();
    // All that a registry wants of a metric is what it is called and `get`; its types know only prom-client's own.
    this.#registry.registerMetric(times as unknown as Histogram);
    return times;
  }

  /** Workers behind one port are added up, but what each of them reads from the same place is not. */
  #gauge<Label extends string = never>(
    name: string,
    help: string,
    labelNames: Label[] = [],
    aggregator: 'max' | 'sum' = 'max',
  ): Gauge<Label> {
    return new Gauge({ name: `oncegate_${name}`, help, labelNames, aggregator, registers: [this.#registry] });
  }
}
