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

/** The codes with which servers say that they lack an item. Another server may have it. */
const NOT_FOUND_CODES = new Set([-32601, -32602, -32002]);
/** The code of a server that is unreachable or faulty. Other servers are still tried. */
const INTERNAL_ERROR_CODE = -32603;

/**
 * Reads the resources and prompts of MCP servers. The agent's rules name them `<upstream>.resources` and
 * `<upstream>.prompts`. Each read is a decision and is logged as one.
 */
export class McpReader {
  readonly #ctx: Context;
  readonly #agent: Agent;
  readonly #progressListener: ProgressListener;

  constructor(ctx: Context, agent: Agent, progressListener: ProgressListener) {
    this.#ctx = ctx;
    this.#agent = agent;
    this.#progressListener = progressListener;
  }

  /** The union of the capabilities of the servers that this agent may read from. */
  capabilities(): JsonObject {
    const capabilities: Record<string, JsonObject> = {};
    for (const kind of ['resources', 'prompts'] as const) {
      const [first] = this.#listSources(kind);
      if (first !== undefined)
        capabilities[kind] = { listChanged: true, ...(kind === 'resources' ? { subscribe: true } : {}) };
    }
    // Revisions of MCP declare completions differently. A request to a server without them does no harm.
    return Object.keys(capabilities).length === 0 ? {} : { ...capabilities, completions: {} };
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

  /** Tries one server after the other until one has the resource. */
  async readResource(params: JsonObject): Promise<JsonObject> {
    return this.#requestFirst('resources', this.#listSources('resources'), 'resources/read', () => params, params);
  }

  /** Subscribes to a resource at every server that has it and that this agent may read from. Returns false if there is none. */
  async subscribeResource(uri: string): Promise<boolean> {
    let isSubscribed = false;
    for (const upstream of this.#listSources('resources')) {
      if (!(await this.#authorize(upstream, 'resources', { uri }))) continue;
      try {
        await this.#getServer(upstream).subscribeToResource(uri);
        isSubscribed = true;
      } catch (error) {
        if (!canTryNextServer(error)) throw error;
      }
    }
    return isSubscribed;
  }

  async getPrompt(params: JsonObject): Promise<JsonObject> {
    const sources = this.#listSources('prompts').filter(
      (upstream) => toServerName(upstream, params['name']) !== undefined,
    );
    const paramsFor = (upstream: Upstream) => ({ ...params, name: toServerName(upstream, params['name']) ?? '' });
    return this.#requestFirst('prompts', sources, 'prompts/get', paramsFor, params);
  }

  async complete(params: JsonObject): Promise<JsonObject> {
    const ref = isJsonObject(params['ref']) ? params['ref'] : {};
    const kind = ref['type'] === 'ref/prompt' ? 'prompts' : 'resources';
    const paramsFor = (upstream: Upstream) => {
      if (kind === 'resources') return params;
      return { ...params, ref: { ...ref, name: toServerName(upstream, ref['name']) ?? '' } };
    };
    const sources = this.#listSources(kind).filter(
      (upstream) => kind === 'resources' || toServerName(upstream, ref['name']) !== undefined,
    );
    return this.#requestFirst(kind, sources, 'completion/complete', paramsFor, params);
  }

  async #requestFirst(
    kind: McpReadKind,
    sources: readonly Upstream[],
    method: string,
    paramsFor: (upstream: Upstream) => JsonObject,
    params: JsonObject,
  ): Promise<JsonObject> {
    let notFound: McpError | undefined;
    let internalError: McpError | undefined;
    for (const upstream of sources) {
      if (!(await this.#authorize(upstream, kind, params))) continue;
      try {
        const answer = await this.#getServer(upstream).request(method, paramsFor(upstream), this.#progressListener);
        await this.#taint(upstream, kind);
        return answer;
      } catch (error) {
        if (!canTryNextServer(error)) throw error;
        if (error.code === INTERNAL_ERROR_CODE) internalError ??= error;
        else notFound ??= error;
      }
    }
    // The error of a faulty server takes precedence, because that server may have the item.
    const error = internalError ?? notFound;
    if (error !== undefined) throw error;
    const { uri } = params;
    const noun = kind === 'prompts' ? 'prompt' : 'resource';
    throw new McpError(-32602, `There is no such ${noun}.`, uri === undefined ? undefined : { uri });
  }

  async #authorize(upstream: Upstream, kind: McpReadKind, args: JsonObject): Promise<boolean> {
    const tool = `${upstream.name}.${kind}`;
    // The gateway does not check the run of a read, so the read counts as outside of runs.
    const origin = { saga: null, run: null };
    const facts = await readDecisionFacts(this.#ctx, this.#agent, tool, origin);
    const { allowed, reason } = decideMcpRead(this.#agent, tool, { args, ...origin, now: Date.now(), ...facts });
    const version = this.#ctx.policies().version;
    const fields = { agent: this.#agent.name, tool, policy: version, ...describeDecisionFacts(facts) };
    const of = args['uri'] ?? args['name'] ?? null;
    const isBlocked = allowed && !this.#canAsk(upstream, kind);
    const why = isBlocked ? { reason: `${tool} is frozen, or its breaker is open` } : allowed ? {} : { reason };
    const event = isBlocked ? 'read_kept_back' : allowed ? 'read_allowed' : 'denied';
    await enqueueAuditEntry(this.#ctx.db, buildAuditEntry(event, { ...fields, of, ...why }));
    // Checked again after the log write, because a freeze may have come meanwhile.
    return allowed && this.#canAsk(upstream, kind);
  }

  /** Taints the agent that reads from an untrusted server, as the answers of its tools do. */
  async #taint({ name, untrusted }: Upstream, kind: McpReadKind): Promise<void> {
    if (untrusted !== true) return;
    const recipient = { agent: this.#agent.name, saga: null, run: null };
    await taintRecipient(this.#ctx, recipient, { txn: null, tool: `${name}.${kind}` });
  }

  #canAsk({ name }: Upstream, kind: McpReadKind): boolean {
    const { adapters, controlFlags } = this.#ctx;
    return adapters.isBreakerClosed(name) && controlFlags.findFreeze(this.#agent.name, `${name}.${kind}`) === undefined;
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
    if (server === undefined) throw new McpError(INTERNAL_ERROR_CODE, `The upstream ${name} is no longer declared.`);
    return server;
  }
}

/** Whether the next server may have the item that this one lacks or cannot give now. */
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
