import type { Policies, Tool, Upstream } from '../gateway/domain/policy.ts';
import { type BreakerState, Guard } from './guard.ts';
import { HttpAdapter } from './http.ts';

interface Entry {
  readonly upstream: Upstream;
  readonly guard: Guard;
}

/** The adapters of the upstreams in force, each behind its guard. One whose contract did not change keeps its connections. */
export class Registry {
  readonly #openedByHand: (upstream: string) => boolean;
  #entries = new Map<string, Entry>();

  constructor(openedByHand: (upstream: string) => boolean) {
    this.#openedByHand = openedByHand;
  }

  use(policies: Policies): void {
    const next = new Map<string, Entry>();
    for (const upstream of policies.upstreams.values()) {
      const current = this.#entries.get(upstream.name);
      const same = current !== undefined && JSON.stringify(current.upstream) === JSON.stringify(upstream);
      next.set(upstream.name, same ? current : this.#entry(upstream));
    }
    const retired = [...this.#entries.values()].filter((entry) => next.get(entry.upstream.name) !== entry);
    this.#entries = next;
    for (const entry of retired) closeLater(entry);
  }

  for(tool: Tool): Guard {
    const found = this.#entries.get(tool.upstream);
    if (found === undefined) throw new TypeError(`no adapter for upstream ${tool.upstream}`);
    return found.guard;
  }

  breakers(): { readonly upstream: string; readonly state: BreakerState }[] {
    return [...this.#entries.values()].map(({ upstream, guard }) => ({ upstream: upstream.name, state: guard.state }));
  }

  reset(upstream: string): void {
    this.#entries.get(upstream)?.guard.reset();
  }

  async close(): Promise<void> {
    await Promise.all([...this.#entries.values()].map(({ guard }) => guard.close()));
  }

  #entry(upstream: Upstream): Entry {
    return { upstream, guard: new Guard(upstream, new HttpAdapter(upstream), () => this.#openedByHand(upstream.name)) };
  }
}

/** A retired adapter may still carry calls: it is closed when the longest of them must have ended. */
function closeLater({ upstream, guard }: Entry): void {
  setTimeout(() => void guard.close().catch(() => {}), upstream.timeoutMs + 60_000).unref();
}
