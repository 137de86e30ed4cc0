import type { Follower } from '../domain/adapter.ts';
import { auditEntry } from '../domain/audit.ts';
import { isObject, type JsonObject } from '../domain/json.ts';
import { McpError } from '../domain/mcp-error.ts';
import type { Agent, Upstream } from '../domain/policy.ts';
import { logEntry } from '../ledger/audit-queue.ts';
import { coversByName, decideOffer } from '../policy/decide.ts';
import { expose } from './exposure.ts';
import { factsOf, factsShown } from './facts.ts';
import type { Station } from './station.ts';

type Kind = 'resources' | 'prompts';

/** Errors by which servers say that they have no such thing: the next one may. */
const NOT_HERE = new Set([-32601, -32602, -32002]);
/** One that cannot be asked, or is not well, must not hide what the others have. */
const CANNOT_SAY = -32603;

/**
 * What MCP servers offer beside tools: resources and prompts, to read only. Whether an agent may is asked of its rules under
 * the names `<upstream>.resources` and `<upstream>.prompts`; each reading is a decision, and is logged as one.
 */
export class Offers {
  readonly #station: Station;
  readonly #agent: Agent;
  readonly #follower: Follower;

  constructor(station: Station, agent: Agent, follower: Follower) {
    this.#station = station;
    this.#agent = agent;
    this.#follower = follower;
  }

  /** The union of what the servers can do that this agent may read from. */
  capabilities(): JsonObject {
    const found: Record<string, JsonObject> = {};
    for (const kind of ['resources', 'prompts'] as const) {
      const [first] = this.#sources(kind);
      if (first !== undefined)
        found[kind] = { listChanged: true, ...(kind === 'resources' ? { subscribe: true } : {}) };
    }
    // Servers differ in what they say of these from revision to revision; asking one that lacks them does no harm.
    return Object.keys(found).length === 0 ? {} : { ...found, completions: {} };
  }

  async list(kind: Kind, method: string, member: string): Promise<JsonObject> {
    const lists = await Promise.all(
      this.#sources(kind)
        .filter((upstream) => this.#mayAsk(upstream, kind))
        .map(async (upstream) => {
          const items = await this.#server(upstream)
            .list(method, member, this.#follower)
            .catch(() => []);
          return kind === 'prompts'
            ? items.map((item) => ({ ...item, name: promptName(upstream, item['name']) }))
            : items;
        }),
    );
    return { [member]: lists.flat() };
  }

  /** Asked of one server after the other, until one has it. */
  async read(params: JsonObject): Promise<JsonObject> {
    return this.#first('resources', this.#sources('resources'), 'resources/read', () => params, params);
  }

  /** Hears of changes of a resource from every server that has it and whose resources this agent may read. False: from none. */
  async watch(uri: string): Promise<boolean> {
    let isWatched = false;
    for (const upstream of this.#sources('resources')) {
      if (!(await this.#allowed(upstream, 'resources', { uri }))) continue;
      try {
        await this.#server(upstream).watch(uri);
        isWatched = true;
      } catch (error) {
        if (!isNoAnswer(error)) throw error;
      }
    }
    return isWatched;
  }

  async prompt(params: JsonObject): Promise<JsonObject> {
    const sources = this.#sources('prompts').filter((upstream) => localName(upstream, params['name']) !== undefined);
    const local = (upstream: Upstream) => ({ ...params, name: localName(upstream, params['name']) ?? '' });
    return this.#first('prompts', sources, 'prompts/get', local, params);
  }

  async complete(params: JsonObject): Promise<JsonObject> {
    const ref = isObject(params['ref']) ? params['ref'] : {};
    const kind = ref['type'] === 'ref/prompt' ? 'prompts' : 'resources';
    const named = (upstream: Upstream) => {
      if (kind === 'resources') return params;
      return { ...params, ref: { ...ref, name: localName(upstream, ref['name']) ?? '' } };
    };
    const sources = this.#sources(kind).filter(
      (upstream) => kind === 'resources' || localName(upstream, ref['name']) !== undefined,
    );
    return this.#first(kind, sources, 'completion/complete', named, params);
  }

  async #first(
    kind: Kind,
    sources: readonly Upstream[],
    method: string,
    paramsFor: (upstream: Upstream) => JsonObject,
    asked: JsonObject,
  ): Promise<JsonObject> {
    let absent: McpError | undefined;
    let trouble: McpError | undefined;
    for (const upstream of sources) {
      if (!(await this.#allowed(upstream, kind, asked))) continue;
      try {
        const answer = await this.#server(upstream).ask(method, paramsFor(upstream), this.#follower);
        await this.#expose(upstream, kind);
        return answer;
      } catch (error) {
        if (!isNoAnswer(error)) throw error;
        if (error.code === CANNOT_SAY) trouble ??= error;
        else absent ??= error;
      }
    }
    // Whoever could not be asked may have it.
    const why = trouble ?? absent;
    if (why !== undefined) throw why;
    const { uri } = asked;
    const what = kind === 'prompts' ? 'prompt' : 'resource';
    throw new McpError(-32602, `There is no such ${what}.`, uri === undefined ? undefined : { uri });
  }

  async #allowed(upstream: Upstream, kind: Kind, args: JsonObject): Promise<boolean> {
    const tool = `${upstream.name}.${kind}`;
    // Nothing checks the run that a reading names, so it counts as outside of runs.
    const place = { saga: null, run: null };
    const facts = await factsOf(this.#station, this.#agent, tool, place);
    const { allowed, reason } = decideOffer(this.#agent, tool, { args, ...place, now: Date.now(), ...facts });
    const version = this.#station.policies().version;
    const said = { agent: this.#agent.name, tool, policy: version, ...factsShown(facts) };
    const of = args['uri'] ?? args['name'] ?? null;
    const isKeptBack = allowed && !this.#mayAsk(upstream, kind);
    const why = isKeptBack ? { reason: `${tool} is frozen, or its breaker is open` } : allowed ? {} : { reason };
    const what = isKeptBack ? 'read_kept_back' : allowed ? 'read_allowed' : 'denied';
    await logEntry(this.#station.db, auditEntry(what, { ...said, of, ...why }));
    // Asked again after the log was written: a freeze may have come meanwhile.
    return allowed && this.#mayAsk(upstream, kind);
  }

  /** What is read of an untrusted server is a stranger's, as the answers of its tools are. */
  async #expose({ name, untrusted }: Upstream, kind: Kind): Promise<void> {
    if (untrusted !== true) return;
    const place = { agent: this.#agent.name, saga: null, run: null };
    await expose(this.#station, place, { txn: null, tool: `${name}.${kind}` });
  }

  #mayAsk({ name }: Upstream, kind: Kind): boolean {
    const { adapters, switches } = this.#station;
    return adapters.isClosed(name) && switches.frozen(this.#agent.name, `${name}.${kind}`) === undefined;
  }

  #sources(kind: Kind): Upstream[] {
    return [...this.#station.policies().upstreams.values()].filter(
      ({ name }) =>
        this.#station.imports.capabilities(name)?.[kind] !== undefined &&
        coversByName(this.#agent, { name: `${name}.${kind}`, effect: 'read' }),
    );
  }

  #server({ name }: Upstream) {
    const server = this.#station.adapters.mcp(name);
    if (server === undefined) throw new McpError(-32603, `${name} is gone`);
    return server;
  }
}

/** The next server may have what this one has not, or cannot give now. */
function isNoAnswer(error: unknown): error is McpError {
  return error instanceof McpError && (NOT_HERE.has(error.code) || error.code === CANNOT_SAY);
}

function promptName(upstream: Upstream, name: unknown): string {
  return upstream.expose === 'bare' ? String(name) : `${upstream.name}__${String(name)}`;
}

function localName(upstream: Upstream, name: unknown): string | undefined {
  if (typeof name !== 'string') return undefined;
  if (upstream.expose === 'bare') return name;
  return name.startsWith(`${upstream.name}__`) ? name.slice(upstream.name.length + 2) : undefined;
}
