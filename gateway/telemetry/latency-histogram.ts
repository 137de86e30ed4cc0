import type { SpanName } from '../domain/telemetry.ts';

const NAME = 'oncegate_station_seconds';
const BOUNDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

interface Labels {
  readonly station: SpanName;
  readonly tool: string;
}

interface Sample {
  readonly metricName: string;
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
}

/**
 * A histogram that prom-client publishes as one of its own. It counts for itself because every call is timed at five stations,
 * and prom-client's looks up labels and bucket by their text each time, which costs more than all the rest of watching a call.
 */
export class LatencyHistogram {
  readonly name = NAME;
  readonly help = 'Time spent at each station of a call; "call" is all of it, as its caller sees it';
  readonly type = 'histogram';
  readonly aggregator = 'sum';
  readonly #byTool = new Map<string, Map<SpanName, Times>>();
  readonly #all: Times[] = [];

  observe(station: SpanName, tool: string, seconds: number): void {
    const times = this.#byTool.get(tool)?.get(station) ?? this.#first(station, tool);
    times.add(seconds);
  }

  /** What prom-client asks of a metric when somebody looks. */
  async get() {
    const { name, help, type, aggregator } = this;
    return { name, help, type, aggregator, values: this.#all.flatMap((times) => times.samples()) };
  }

  #first(station: SpanName, tool: string): Times {
    const times = new Times({ station, tool });
    const stations = this.#byTool.get(tool) ?? new Map<SpanName, Times>();
    this.#byTool.set(tool, stations.set(station, times));
    this.#all.push(times);
    return times;
  }
}

/** Of one station and one tool. */
class Times {
  readonly #labels: Labels;
  /** How many were within each bound and beyond the one before; the last were beyond all of them. */
  readonly #counts = new Float64Array(BOUNDS.length + 1);
  #sum = 0;

  constructor(labels: Labels) {
    this.#labels = labels;
  }

  add(seconds: number): void {
    let bucket = 0;
    while (bucket < BOUNDS.length && seconds > (BOUNDS[bucket] as number)) bucket += 1;
    this.#counts[bucket] = (this.#counts[bucket] as number) + 1;
    this.#sum += seconds;
  }

  samples(): Sample[] {
    const labels = this.#labels;
    let count = 0;
    const samples: Sample[] = [...BOUNDS, '+Inf'].map((le, bucket) => {
      count += this.#counts[bucket] as number;
      return { metricName: `${NAME}_bucket`, labels: { le, ...labels }, value: count };
    });
    samples.push({ metricName: `${NAME}_sum`, labels: { ...labels }, value: this.#sum });
    samples.push({ metricName: `${NAME}_count`, labels: { ...labels }, value: count });
    return samples;
  }
}
