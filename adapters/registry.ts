import type { Policies, Tool, Upstream } from '../gateway/domain/policy.ts';
import { type BreakerState, CircuitBreakerAdapter } from './circuit-breaker.ts';
import { HttpAdapter } from './http/http-adapter.ts';
import { McpAdapter } from './mcp/mcp-adapter.ts';

interface RegistryEntry {
  readonly upstream: Upstream;
  readonly guard: CircuitBreakerAdapter;
  /** Of an MCP server: the same adapter, for what is no tool call. */
  readonly mcp: McpAdapter | undefined;
}

/** The adapters of the upstreams in force, each behind its guard. One whose contract did not change keeps its connections. */
export class AdapterRegistry {
  readonly #isManuallyOpen: (upstream: string) => boolean;
  readonly #key: Buffer;
  #entries = new Map<string, RegistryEntry>();

  constructor(openedByHand: (upstream: string) => boolean, key: Buffer) {
    this.#isManuallyOpen = openedByHand;
    this.#key = key;
  }

  applyPolicies(policies: Policies): void {
    const next = new Map<string, RegistryEntry>();
    for (const upstream of policies.upstreams.values()) {
      const current = this.#entries.get(upstream.name);
      const same = current !== undefined && JSON.stringify(current.upstream) === JSON.stringify(upstream);
      next.set(upstream.name, same ? current : this.#createEntry(upstream));
    }
    const retired = [...this.#entries.values()].filter((entry) => next.get(entry.upstream.name) !== entry);
    this.#entries = next;
    for (const entry of retired) scheduleClose(entry);
  }

  getAdapter(tool: Tool): CircuitBreakerAdapter {
    const found = this.#entries.get(tool.upstream);
    if (found === undefined) throw new TypeError(`no adapter for upstream ${tool.upstream}`);
    return found.guard;
  }

  /** The MCP server behind an upstream, for everything but calls: those go through the guard. */
  findMcpAdapter(upstream: string): McpAdapter | undefined {
    return this.#entries.get(upstream)?.mcp;
  }

  /** What an open breaker says of everything that would be sent. */
  isBreakerClosed(upstream: string): boolean {
    return this.#entries.get(upstream)?.guard.state === 'closed';
  }

  listBreakers(): { readonly upstream: string; readonly state: BreakerState }[] {
    return [...this.#entries.values()].map(({ upstream, guard }) => ({ upstream: upstream.name, state: guard.state }));
  }

  resetBreaker(upstream: string): void {
    this.#entries.get(upstream)?.guard.reset();
  }

  async close(): Promise<void> {
    await Promise.all([...this.#entries.values()].map(({ guard }) => guard.close()));
  }

  #createEntry(upstream: Upstream): RegistryEntry {
    const mcp = upstream.adapter === 'mcp' ? new McpAdapter(upstream, this.#key) : undefined;
    const adapter = mcp ?? new HttpAdapter(upstream, this.#key);
    const guard = new CircuitBreakerAdapter(upstream, adapter, () => this.#isManuallyOpen(upstream.name));
    return { upstream, guard, mcp };
  }
}

/** A retired adapter may still carry calls: it is closed when the longest of them must have ended. */
function scheduleClose({ upstream, guard }: RegistryEntry): void {
  setTimeout(() => void guard.close().catch(() => {}), upstream.timeoutMs + 60_000).unref();
}
