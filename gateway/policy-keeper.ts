import type { Logger } from 'pino';
import { ConfigError } from './config.ts';
import type { Policies } from './domain/policy.ts';
import { formatFault, type Loaded } from './policy/load.ts';
import { type PolicyWatch, watchPolicies } from './policy/watch.ts';

/** The policies in force. A change on disk replaces them whole; a bad one leaves the old in force and is loud. */
export class PolicyKeeper {
  readonly #log: Logger;
  readonly #listeners: ((policies: Policies) => void)[] = [];
  #watch: PolicyWatch | undefined;
  #current: Policies;
  #faults: readonly string[] = [];

  private constructor(first: Policies, log: Logger) {
    this.#current = first;
    this.#log = log;
  }

  static async start(dir: string, env: NodeJS.ProcessEnv, log: Logger): Promise<PolicyKeeper> {
    let keeper: PolicyKeeper | undefined;
    const watch = watchPolicies({ dir, env, onChange: (loaded) => keeper?.apply(loaded) });
    const loaded = await watch.reload();
    const faults = loaded.ok ? unenforced(loaded.policies) : loaded.faults.map(formatFault);
    if (!loaded.ok || faults.length > 0) {
      await watch.close();
      throw new ConfigError(faults);
    }
    for (const warning of loaded.warnings) log.warn(formatFault(warning));
    keeper = new PolicyKeeper(loaded.policies, log);
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

  warnings(): string[] {
    return this.#faults.map((fault) => `a policy change was refused: ${fault}`);
  }

  /** Loads now; the faults, if what is on disk was refused. */
  async reload(): Promise<readonly string[]> {
    await this.#watch?.reload();
    return this.#faults;
  }

  apply(loaded: Loaded): void {
    this.#faults = loaded.ok ? unenforced(loaded.policies) : loaded.faults.map(formatFault);
    if (!loaded.ok || this.#faults.length > 0) {
      for (const fault of this.#faults)
        this.#log.error(`policy change refused, the old policies stay in force: ${fault}`);
      return;
    }
    if (loaded.policies.version === this.#current.version) return;
    this.#current = loaded.policies;
    for (const listener of this.#listeners) listener(loaded.policies);
    this.#log.info({ version: loaded.policies.version }, 'policies changed');
  }

  async close(): Promise<void> {
    await this.#watch?.close();
  }
}

/** What the language can say and this version cannot enforce yet is refused, never ignored. */
function unenforced(policies: Policies): string[] {
  const faults: string[] = [];
  for (const tool of policies.tools.values()) {
    if (tool.locks.length > 0) faults.push(`tool ${tool.name}: locks are not enforced by this version`);
    if (tool.observe !== undefined) faults.push(`tool ${tool.name}: observe is not enforced by this version`);
  }
  for (const upstream of policies.upstreams.values()) {
    if (upstream.adapter === 'mcp')
      faults.push(`upstream ${upstream.name}: the mcp adapter is not part of this version`);
  }
  return faults;
}
