import type { Adapter } from '../gateway/domain/adapter.ts';
import type { Policies, Tool, Upstream } from '../gateway/domain/policy.ts';
import { HttpAdapter } from './http.ts';

/** The adapters of the upstreams in force. An upstream whose contract did not change keeps its connections. */
export class Registry {
  #adapters = new Map<string, { readonly upstream: Upstream; readonly adapter: Adapter }>();

  use(policies: Policies): void {
    const next = new Map<string, { readonly upstream: Upstream; readonly adapter: Adapter }>();
    for (const upstream of policies.upstreams.values()) {
      const current = this.#adapters.get(upstream.name);
      const same = current !== undefined && JSON.stringify(current.upstream) === JSON.stringify(upstream);
      next.set(upstream.name, same ? current : { upstream, adapter: new HttpAdapter(upstream) });
    }
    const retired = [...this.#adapters.values()].filter(
      ({ upstream, adapter }) => next.get(upstream.name)?.adapter !== adapter,
    );
    this.#adapters = next;
    for (const { upstream, adapter } of retired) closeLater(upstream, adapter);
  }

  for(tool: Tool): Adapter {
    const found = this.#adapters.get(tool.upstream);
    if (found === undefined) throw new TypeError(`no adapter for upstream ${tool.upstream}`);
    return found.adapter;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#adapters.values()].map(({ adapter }) => adapter.close()));
  }
}

/** A retired adapter may still carry calls: it is closed when the longest of them must have ended. */
function closeLater(upstream: Upstream, adapter: Adapter): void {
  setTimeout(() => void adapter.close().catch(() => {}), upstream.timeoutMs + 60_000).unref();
}
