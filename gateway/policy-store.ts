import type { Logger } from 'pino';
import { ConfigError } from './config.ts';
import type { Policies } from './domain/policy.ts';
import { formatFault, type LoadResult } from './policy/load-policies.ts';
import { type PolicyWatcher, watchPolicies } from './policy/watch-policies.ts';

/** The result of one load of the policies. */
export interface PolicyLoadResult {
  /** The version in force afterwards. */
  readonly version: string;
  /** Why the files on disk were refused; empty if they are in force. */
  readonly faults: readonly string[];
  /** `person <name>`, `SIGHUP`, or `file change`. */
  readonly askedBy: string;
}

/** Holds the policies in force. A good change on disk replaces them all; a bad one is logged and changes nothing. */
export class PolicyStore {
  readonly #log: Logger;
  readonly #changeListeners: ((policies: Policies) => void)[] = [];
  readonly #loadListeners: ((result: PolicyLoadResult) => void)[] = [];
  #watcher: PolicyWatcher | undefined;
  #current: Policies;
  #faults: readonly string[] = [];

  private constructor(first: Policies, log: Logger) {
    this.#current = first;
    this.#log = log;
  }

  static async start(dir: string, env: NodeJS.ProcessEnv, log: Logger): Promise<PolicyStore> {
    let store: PolicyStore | undefined;
    const watcher = watchPolicies({ dir, env, onChange: (loaded, askedBy) => store?.apply(loaded, askedBy) });
    const loaded = await watcher.reload();
    if (!loaded.ok) {
      await watcher.close();
      throw new ConfigError(loaded.faults.map(formatFault));
    }
    for (const warning of loaded.warnings) log.warn(formatFault(warning));
    store = new PolicyStore(loaded.policies, log);
    store.#watcher = watcher;
    return store;
  }

  get current(): Policies {
    return this.#current;
  }

  /** Whether the policies in force declare this agent. */
  has(agent: string): boolean {
    return this.#current.agents.has(agent);
  }

  onChange(listener: (policies: Policies) => void): void {
    this.#changeListeners.push(listener);
  }

  /** The listener is called after every load, good or refused. */
  onLoad(listener: (result: PolicyLoadResult) => void): void {
    this.#loadListeners.push(listener);
  }

  /** Why the files on disk were refused; empty if they are in force. */
  get faults(): readonly string[] {
    return this.#faults;
  }

  /** The faults of a refused change, as warnings about the health of the gateway. */
  warnings(): string[] {
    return this.#faults.map((fault) => `a policy change was refused: ${fault}`);
  }

  /** Loads policies and credentials now. Returns the faults if they were refused. */
  async reload(askedBy: string): Promise<readonly string[]> {
    await this.#watcher?.reload(askedBy);
    return this.#faults;
  }

  apply(loaded: LoadResult, askedBy = 'file change'): void {
    this.#faults = loaded.ok ? [] : loaded.faults.map(formatFault);
    if (loaded.ok) this.#activate(loaded.policies);
    for (const fault of this.#faults)
      this.#log.error({ askedBy }, `The policy change was refused; the old policies stay in force: ${fault}`);
    for (const listener of this.#loadListeners)
      listener({ version: this.#current.version, faults: this.#faults, askedBy });
  }

  /** Replaces the policies even if the version is unchanged, because the version does not cover rotated credentials. */
  #activate(policies: Policies): void {
    const isChanged = policies.version !== this.#current.version;
    this.#current = policies;
    for (const listener of this.#changeListeners) listener(policies);
    this.#log.info(
      { version: policies.version },
      isChanged ? 'The policies changed.' : 'The policies were loaded again.',
    );
  }

  async close(): Promise<void> {
    await this.#watcher?.close();
  }
}
