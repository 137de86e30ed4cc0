import { Gauge, Registry } from 'prom-client';

/** What Prometheus may ask of this process. One registry of its own: nothing is counted behind the gateway's back. */
export class Metrics {
  readonly #registry = new Registry();
  readonly #reloadFailed = new Gauge({
    name: 'oncegate_policy_reload_failed',
    help: 'Whether the policies on disk are refused (1) and older ones are in force',
    registers: [this.#registry],
  });
  readonly #policyInfo = new Gauge({
    name: 'oncegate_policy_info',
    help: 'The version of the policies in force',
    labelNames: ['version'],
    registers: [this.#registry],
  });

  policies(version: string, refused: boolean): void {
    this.#reloadFailed.set(refused ? 1 : 0);
    this.#policyInfo.reset();
    this.#policyInfo.set({ version }, 1);
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  text(): Promise<string> {
    return this.#registry.metrics();
  }
}
