import type { Policies, Tool, Upstream } from '../gateway/domain/policy.ts';
import { type BreakerState, CircuitBreakerAdapter } from './circuit-breaker.ts';
import { HttpAdapter } from './http/http-adapter.ts';
import { McpAdapter } from './mcp/mcp-adapter.ts';

interface RegistryEntry {
  readonly upstream: Upstream;
  readonly adapter: CircuitBreakerAdapter;
  /** The adapter of an MCP server without the circuit breaker, for requests that are not tool calls. */
  readonly mcp: McpAdapter | undefined;
}

/** The adapters of all upstreams, each behind a circuit breaker. An unchanged upstream keeps its connections on a reload. */
export class AdapterRegistry {
  readonly #isManuallyOpen: (upstream: string) => boolean;
  /** Makes the digests that stand for credentials in the ledger. */
  readonly #key: Buffer;
  #entries = new Map<string, RegistryEntry>();

  constructor(isManuallyOpen: (upstream: string) => boolean, key: Buffer) {
    this.#isManuallyOpen = isManuallyOpen;
    this.#key = key;
  }

  applyPolicies(policies: Policies): void {
    const next = new Map<string, RegistryEntry>();
    for (const upstream of policies.upstreams.values()) {
      const current = this.#entries.get(upstream.name);
      const isSame = current !== undefined && JSON.stringify(current.upstream) === JSON.stringify(upstream);
      next.set(upstream.name, isSame ? current : this.#createEntry(upstream));
    }
    const retired = [...this.#entries.values()].filter((entry) => next.get(entry.upstream.name) !== entry);
    this.#entries = next;
    for (const entry of retired) scheduleClose(entry);
  }

  getAdapter(tool: Tool): CircuitBreakerAdapter {
    const entry = this.#entries.get(tool.upstream);
    if (entry === undefined) throw new TypeError(`There is no adapter for upstream ${tool.upstream}.`);
    return entry.adapter;
  }

  /** The adapter of an MCP server, for requests that are not tool calls. Tool calls go through the circuit breaker. */
  findMcpAdapter(upstream: string): McpAdapter | undefined {
    return this.#entries.get(upstream)?.mcp;
  }

  isBreakerClosed(upstream: string): boolean {
    return this.#entries.get(upstream)?.adapter.state === 'closed';
  }

  listBreakers(): { readonly upstream: string; readonly state: BreakerState }[] {
    return [...this.#entries.values()].map(({ upstream, adapter }) => ({
      upstream: upstream.name,
      state: adapter.state,
    }));
  }

  resetBreaker(upstream: string): void {
    this.#entries.get(upstream)?.adapter.reset();
  }

  async close(): Promise<void> {
    await Promise.all([...this.#entries.values()].map(({ adapter }) => adapter.close()));
  }

  #createEntry(upstream: Upstream): RegistryEntry {
    const mcp = upstream.adapter === 'mcp' ? new McpAdapter(upstream, this.#key) : undefined;
    const unguarded = mcp ?? new HttpAdapter(upstream, this.#key);
    const adapter = new CircuitBreakerAdapter(upstream, unguarded, () => this.#isManuallyOpen(upstream.name));
    return { upstream, adapter, mcp };
  }
}

/** Closes a retired adapter when its longest call must have ended. */
function scheduleClose({ upstream, adapter }: RegistryEntry): void {
  setTimeout(() => void adapter.close().catch(() => {}), upstream.timeoutMs + 60_000).unref();
}
