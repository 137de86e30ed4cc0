import type { Logger } from 'pino';
import { ConfigError } from './config.ts';
import type { Policies } from './domain/policy.ts';
import { formatFault, type LoadResult } from './policy/load-policies.ts';
import { type PolicyWatcher, watchPolicies } from './policy/watch-policies.ts';

/** What came of reading the policies again. */
export interface PolicyLoadResult {
  /** The version in force afterwards. */
  readonly version: string;
  /** Why what is on disk was refused; empty when it is in force. */
  readonly faults: readonly string[];
  /** `person <name>`, `SIGHUP`, or `file change`. */
  readonly askedBy: string;
}

/** The policies in force. A change on disk replaces them whole; a bad one leaves the old in force and is loud. */
export class PolicyStore {
  readonly #log: Logger;
  readonly #listeners: ((policies: Policies) => void)[] = [];
  readonly #readers: ((reading: PolicyLoadResult) => void)[] = [];
  #watch: PolicyWatcher | undefined;
  #current: Policies;
  #faults: readonly string[] = [];

  private constructor(first: Policies, log: Logger) {
    this.#current = first;
    this.#log = log;
  }

  static async start(dir: string, env: NodeJS.ProcessEnv, log: Logger): Promise<PolicyStore> {
    let keeper: PolicyStore | undefined;
    const watch = watchPolicies({ dir, env, onChange: (loaded, askedBy) => keeper?.apply(loaded, askedBy) });
    const loaded = await watch.reload();
    if (!loaded.ok) {
      await watch.close();
      throw new ConfigError(loaded.faults.map(formatFault));
    }
    for (const warning of loaded.warnings) log.warn(formatFault(warning));
    keeper = new PolicyStore(loaded.policies, log);
    keeper.#watch = watch;
    return keeper;
  }

  get current(): Policies {
    return this.#current;
  }

  has(agent: string): boolean {
    return this.#current.agents.has(agent);
  }

  onChange(listener: (policies: Policies) => void): void {
    this.#listeners.push(listener);
  }

  /** Hears of every reading, good or refused. */
  onReading(listener: (reading: PolicyLoadResult) => void): void {
    this.#readers.push(listener);
  }

  /** Why what is on disk was refused; empty when it is in force. */
  get faults(): readonly string[] {
    return this.#faults;
  }

  warnings(): string[] {
    return this.#faults.map((fault) => `a policy change was refused: ${fault}`);
  }

  /** Loads now, credentials too; the faults, if what is on disk was refused. */
  async reload(askedBy: string): Promise<readonly string[]> {
    await this.#watch?.reload(askedBy);
    return this.#faults;
  }

  apply(loaded: LoadResult, askedBy = 'file change'): void {
    this.#faults = loaded.ok ? [] : loaded.faults.map(formatFault);
    if (loaded.ok) this.#takeForce(loaded.policies);
    for (const fault of this.#faults)
      this.#log.error({ askedBy }, `policy change refused, the old policies stay in force: ${fault}`);
    for (const listener of this.#readers) listener({ version: this.#current.version, faults: this.#faults, askedBy });
  }

  /** Also when the version is the same: it says nothing about credentials, which may have been rotated. */
  #takeForce(policies: Policies): void {
    const changed = policies.version !== this.#current.version;
    this.#current = policies;
    for (const listener of this.#listeners) listener(policies);
    this.#log.info({ version: policies.version }, changed ? 'policies changed' : 'policies were read again');
  }

  async close(): Promise<void> {
    await this.#watch?.close();
  }
}
