import { AggregatorRegistry, Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Result, StintName } from './domain/watch.ts';
import type { Backlog } from './ledger/backlog.ts';

/** What is asked of the rest of the gateway when somebody looks. */
export interface Soundings {
  readonly breakers: () => readonly { readonly upstream: string; readonly state: 'closed' | 'open' | 'half_open' }[];
  readonly backlog: () => Promise<Backlog>;
}

const BREAKER = { closed: 0, half_open: 1, open: 2 } as const;
const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];
const SIZES = [1, 2, 4, 8, 16, 32, 64, 128];

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
  readonly #stints = new Histogram({
    name: 'oncegate_station_seconds',
    help: 'Time spent at each station of a call; "call" is all of it, as its caller sees it',
    labelNames: ['station', 'tool'],
    buckets: SECONDS,
    registers: [this.#registry],
  });
  readonly #calls = new Counter({
    name: 'oncegate_calls_total',
    help: 'Answers to calls: by state, or by the code of the refusal',
    labelNames: ['tool', 'outcome', 'replayed'],
    registers: [this.#registry],
  });
  /** Looking up labels costs more than counting; there are as many as tools and stations. */
  readonly #stintOf = new Map<string, Histogram.Internal<'station' | 'tool'>>();
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
  sound({ breakers, backlog }: Soundings): void {
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

  stint(station: StintName, tool: string, seconds: number): void {
    const name = `${station} ${tool}`;
    let child = this.#stintOf.get(name);
    if (child === undefined) {
      child = this.#stints.labels(station, tool);
      this.#stintOf.set(name, child);
    }
    child.observe(seconds);
  }

  call(tool: string, { state, code, replayed }: Result): void {
    this.#calls.inc({ tool, outcome: String(code ?? state), replayed: String(replayed === true) });
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
