import type { ProgressListener } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { isJsonObject, type JsonObject } from '../../domain/json.ts';
import { McpError } from '../../domain/mcp-error.ts';
import type { Agent, Upstream } from '../../domain/policy.ts';
import { enqueueAuditEntry } from '../../ledger/audit/audit-queue.ts';
import { canAllowTool, decideMcpRead } from '../../policy/decide.ts';
import { describeDecisionFacts, readDecisionFacts } from '../calls/decision-facts.ts';
import type { Context } from '../context.ts';
import { taintRecipient } from '../controls/taint.ts';

type McpReadKind = 'resources' | 'prompts';

/** Errors by which servers say that they have no such thing: the next one may. */
const NOT_FOUND_CODES = new Set([-32601, -32602, -32002]);
/** One that cannot be asked, or is not well, must not hide what the others have. */
const INTERNAL_ERROR_CODE = -32603;

/**
 * What MCP servers offer beside tools: resources and prompts, to read only. Whether an agent may is asked of its rules under
 * the names `<upstream>.resources` and `<upstream>.prompts`; each reading is a decision, and is logged as one.
 */
export class McpReader {
  readonly #ctx: Context;
  readonly #agent: Agent;
  readonly #progressListener: ProgressListener;

  constructor(station: Context, agent: Agent, follower: ProgressListener) {
    this.#ctx = station;
    this.#agent = agent;
    this.#progressListener = follower;
  }

  /** The union of what the servers can do that this agent may read from. */
  capabilities(): JsonObject {
    const found: Record<string, JsonObject> = {};
    for (const kind of ['resources', 'prompts'] as const) {
      const [first] = this.#listSources(kind);
      if (first !== undefined)
        found[kind] = { listChanged: true, ...(kind === 'resources' ? { subscribe: true } : {}) };
    }
    // Servers differ in what they say of these from revision to revision; asking one that lacks them does no harm.
    return Object.keys(found).length === 0 ? {} : { ...found, completions: {} };
  }

  async list(kind: McpReadKind, method: string, member: string): Promise<JsonObject> {
    const lists = await Promise.all(
      this.#listSources(kind)
        .filter((upstream) => this.#canAsk(upstream, kind))
        .map(async (upstream) => {
          const items = await this.#getServer(upstream)
            .listAllPages(method, member, this.#progressListener)
            .catch(() => []);
          return kind === 'prompts'
            ? items.map((item) => ({ ...item, name: toExposedName(upstream, item['name']) }))
            : items;
        }),
    );
    return { [member]: lists.flat() };
  }

  /** Asked of one server after the other, until one has it. */
  async readResource(params: JsonObject): Promise<JsonObject> {
    return this.#requestFirst('resources', this.#listSources('resources'), 'resources/read', () => params, params);
  }

  /** Hears of changes of a resource from every server that has it and whose resources this agent may read. False: from none. */
  async subscribeResource(uri: string): Promise<boolean> {
    let isWatched = false;
    for (const upstream of this.#listSources('resources')) {
      if (!(await this.#authorize(upstream, 'resources', { uri }))) continue;
      try {
        await this.#getServer(upstream).subscribeToResource(uri);
        isWatched = true;
      } catch (error) {
        if (!canTryNextServer(error)) throw error;
      }
    }
    return isWatched;
  }

  async getPrompt(params: JsonObject): Promise<JsonObject> {
    const sources = this.#listSources('prompts').filter(
      (upstream) => toServerName(upstream, params['name']) !== undefined,
    );
    const local = (upstream: Upstream) => ({ ...params, name: toServerName(upstream, params['name']) ?? '' });
    return this.#requestFirst('prompts', sources, 'prompts/get', local, params);
  }

  async complete(params: JsonObject): Promise<JsonObject> {
    const ref = isJsonObject(params['ref']) ? params['ref'] : {};
    const kind = ref['type'] === 'ref/prompt' ? 'prompts' : 'resources';
    const named = (upstream: Upstream) => {
      if (kind === 'resources') return params;
      return { ...params, ref: { ...ref, name: toServerName(upstream, ref['name']) ?? '' } };
    };
    const sources = this.#listSources(kind).filter(
      (upstream) => kind === 'resources' || toServerName(upstream, ref['name']) !== undefined,
    );
    return this.#requestFirst(kind, sources, 'completion/complete', named, params);
  }

  async #requestFirst(
    kind: McpReadKind,
    sources: readonly Upstream[],
    method: string,
    paramsFor: (upstream: Upstream) => JsonObject,
    asked: JsonObject,
  ): Promise<JsonObject> {
    let absent: McpError | undefined;
    let trouble: McpError | undefined;
    for (const upstream of sources) {
      if (!(await this.#authorize(upstream, kind, asked))) continue;
      try {
        const answer = await this.#getServer(upstream).request(method, paramsFor(upstream), this.#progressListener);
        await this.#taint(upstream, kind);
        return answer;
      } catch (error) {
        if (!canTryNextServer(error)) throw error;
        if (error.code === INTERNAL_ERROR_CODE) trouble ??= error;
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

  async #authorize(upstream: Upstream, kind: McpReadKind, args: JsonObject): Promise<boolean> {
    const tool = `${upstream.name}.${kind}`;
    // Nothing checks the run that a reading names, so it counts as outside of runs.
    const place = { saga: null, run: null };
    const facts = await readDecisionFacts(this.#ctx, this.#agent, tool, place);
    const { allowed, reason } = decideMcpRead(this.#agent, tool, { args, ...place, now: Date.now(), ...facts });
    const version = this.#ctx.policies().version;
    const said = { agent: this.#agent.name, tool, policy: version, ...describeDecisionFacts(facts) };
    const of = args['uri'] ?? args['name'] ?? null;
    const isKeptBack = allowed && !this.#canAsk(upstream, kind);
    const why = isKeptBack ? { reason: `${tool} is frozen, or its breaker is open` } : allowed ? {} : { reason };
    const what = isKeptBack ? 'read_kept_back' : allowed ? 'read_allowed' : 'denied';
    await enqueueAuditEntry(this.#ctx.db, buildAuditEntry(what, { ...said, of, ...why }));
    // Asked again after the log was written: a freeze may have come meanwhile.
    return allowed && this.#canAsk(upstream, kind);
  }

  /** What is read of an untrusted server is a stranger's, as the answers of its tools are. */
  async #taint({ name, untrusted }: Upstream, kind: McpReadKind): Promise<void> {
    if (untrusted !== true) return;
    const place = { agent: this.#agent.name, saga: null, run: null };
    await taintRecipient(this.#ctx, place, { txn: null, tool: `${name}.${kind}` });
  }

  #canAsk({ name }: Upstream, kind: McpReadKind): boolean {
    const { adapters, switches } = this.#ctx;
    return adapters.isBreakerClosed(name) && switches.findFreeze(this.#agent.name, `${name}.${kind}`) === undefined;
  }

  #listSources(kind: McpReadKind): Upstream[] {
    return [...this.#ctx.policies().upstreams.values()].filter(
      ({ name }) =>
        this.#ctx.imports.capabilities(name)?.[kind] !== undefined &&
        canAllowTool(this.#agent, { name: `${name}.${kind}`, effect: 'read' }),
    );
  }

  #getServer({ name }: Upstream) {
    const server = this.#ctx.adapters.findMcpAdapter(name);
    if (server === undefined) throw new McpError(-32603, `${name} is gone`);
    return server;
  }
}

/** The next server may have what this one has not, or cannot give now. */
function canTryNextServer(error: unknown): error is McpError {
  return error instanceof McpError && (NOT_FOUND_CODES.has(error.code) || error.code === INTERNAL_ERROR_CODE);
}

function toExposedName(upstream: Upstream, name: unknown): string {
  return upstream.expose === 'bare' ? String(name) : `${upstream.name}__${String(name)}`;
}

function toServerName(upstream: Upstream, name: unknown): string | undefined {
  if (typeof name !== 'string') return undefined;
  if (upstream.expose === 'bare') return name;
  return name.startsWith(`${upstream.name}__`) ? name.slice(upstream.name.length + 2) : undefined;
}
