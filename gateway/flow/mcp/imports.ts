import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { AdapterRegistry } from '../../../adapters/registry.ts';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { canonicalize } from '../../domain/canonical.ts';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type JsonObject } from '../../domain/json.ts';
import type { Policies, Upstream } from '../../domain/policy.ts';
import {
  acceptOffer,
  type Pin,
  type PinOffer,
  readPins,
  readPinsVersion,
  recordOffers,
} from '../../ledger/controls/pins.ts';
import type { Database } from '../../ledger/db.ts';
import { importMcpTools, type ListedMcpTool } from '../../policy/import-mcp-tools.ts';
import { ChangeNotifier } from './change-notifier.ts';

export type { Pin };

/** How often the tools of a server are listed. */
const LIST_INTERVAL_MS = 30_000;
const RELIST_DELAY_MS = 200;
const LIST_RETRY_MS = 2_000;
/** How often the pins are read. Other replicas and people may change them. */
const PIN_POLL_MS = 2_000;
/** How long the start of the gateway waits for servers that list their tools slowly. */
const MAX_START_WAIT_MS = 3_000;
const MAX_DEFINITION_CHARS = 262_144;
/** How many different warnings are remembered, so that each is logged once. */
const MAX_REMEMBERED_WARNINGS = 1_000;
/** No model can use more tools. The limit exists because every tool that was ever offered keeps a row in the ledger. */
const MAX_TOOLS_PER_SERVER = 2_000;

interface ImportDependencies {
  readonly db: Database;
  readonly adapters: AdapterRegistry;
  readonly log: { warn(fields: object, message: string): void };
}

/**
 * The tools imported from MCP servers. Each is pinned as it is first seen. A tool whose definition changes keeps its pinned
 * definition and is disabled until a person accepts the change. The pins are in the ledger, so every replica has the same
 * ones, and a server that is down at the start still has its tools.
 */
export class McpImports {
  readonly #deps: ImportDependencies;
  #base: Policies;
  #merged: Policies;
  #pins: readonly Pin[] = [];
  /** The tool names that each server listed last. No entry until the first successful listing of this process. */
  readonly #listed = new Map<string, ReadonlySet<string>>();
  readonly #listing = new Map<string, { shouldRepeat: boolean; done: Promise<void> }>();
  readonly #capabilities = new Map<string, JsonObject>();
  readonly #notifier = new ChangeNotifier();
  readonly #definitions = new Map<string, ListedMcpTool>();
  readonly #warned = new Set<string>();
  /** The version of the pins and the listed names at the last merge. */
  #lastState = '';
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #retries = new Map<string, NodeJS.Timeout>();
  #stopped = false;

  constructor(dependencies: ImportDependencies, base: Policies) {
    this.#deps = dependencies;
    this.#base = base;
    this.#merged = base;
  }

  get current(): Policies {
    return this.#merged;
  }

  pins(): readonly Pin[] {
    return this.#pins;
  }

  /** The capabilities that a server declared; undefined until it was reached. */
  capabilities(upstream: string): JsonObject | undefined {
    return this.#capabilities.get(upstream);
  }

  /** Calls the listener with an MCP notification when the tools, resources or prompts of a server change. */
  onChange(listener: (method: string, params: JsonObject) => void): void {
    this.#notifier.subscribe(listener);
  }

  async start(): Promise<void> {
    await this.#refreshPins();
    const listed = Promise.all(this.#listImportingUpstreams().map((upstream) => this.#listTools(upstream)));
    await Promise.race([listed, new Promise((resolve) => this.#timers.push(setTimeout(resolve, MAX_START_WAIT_MS)))]);
    for (const upstream of this.#listImportingUpstreams()) this.#subscribe(upstream);
    this.#timers.push(
      setInterval(() => void this.#refreshPins().catch(() => {}), PIN_POLL_MS),
      setInterval(() => void this.#listAll(), LIST_INTERVAL_MS),
    );
    for (const timer of this.#timers) timer.unref();
  }

  /** Replaces the policies on disk. The adapters have them already. */
  replaceBase(base: Policies): void {
    this.#base = base;
    this.#mergePolicies();
    for (const upstream of this.#listImportingUpstreams()) this.#subscribe(upstream);
    void this.#listAll();
  }

  /** Accepts the offered definition for a person, if its digest is the one that the person saw. */
  async acceptPin(upstream: string, tool: string, digest: string, person: string, reason: string): Promise<Pin> {
    const offer = { upstream, tool };
    const entry = buildAuditEntry('pin_accepted', { ...offer, digest, person, reason });
    const accepted = await acceptOffer(this.#deps.db, offer, Buffer.from(digest, 'hex'), person, entry);
    await this.#refreshPins();
    const pin = this.#pins.find((each) => each.upstream === upstream && each.tool === tool);
    if (pin === undefined)
      throw new GatewayError('not_found', `The upstream ${upstream} has no tool ${tool.slice(0, 128)}.`);
    if (!accepted && pin.digest.toString('hex') !== digest)
      throw new GatewayError(
        'conflict',
        `The definition that ${upstream} offers for ${tool} is not the one with this digest. Review it again.`,
      );
    return pin;
  }

  stop(): void {
    this.#stopped = true;
    for (const timer of [...this.#timers, ...this.#retries.values()]) clearTimeout(timer);
  }

  #listImportingUpstreams(): Upstream[] {
    return [...this.#base.upstreams.values()].filter(
      ({ adapter, import: wanted }) => adapter === 'mcp' && wanted !== undefined,
    );
  }

  async #listAll(): Promise<void> {
    await Promise.all(this.#listImportingUpstreams().map((upstream) => this.#listTools(upstream)));
  }

  /** Lists the tools of a server. Requests during a listing lead to one more listing right after it. */
  #listTools(upstream: Upstream): Promise<void> {
    const { name } = upstream;
    const running = this.#listing.get(name);
    if (running !== undefined) {
      running.shouldRepeat = true;
      return running.done;
    }
    clearTimeout(this.#retries.get(name));
    const listing = { shouldRepeat: false, done: Promise.resolve() };
    this.#listing.set(name, listing);
    listing.done = this.#fetchTools(upstream).then(async (isListed) => {
      if (listing.shouldRepeat) await sleep(RELIST_DELAY_MS, undefined, { ref: false });
      this.#listing.delete(name);
      if (listing.shouldRepeat) await this.#listTools(upstream);
      else if (!isListed) this.#scheduleRetry(name);
    });
    return listing.done;
  }

  /** Keeps at most one retry timer per server. */
  #scheduleRetry(name: string): void {
    clearTimeout(this.#retries.get(name));
    const timer = setTimeout(() => this.#listToolsByName(name), LIST_RETRY_MS);
    this.#retries.set(name, timer);
    timer.unref();
  }

  #listToolsByName(name: string): void {
    const upstream = this.#listImportingUpstreams().find((source) => source.name === name);
    if (upstream !== undefined) void this.#listTools(upstream);
  }

  async #fetchTools(upstream: Upstream): Promise<boolean> {
    const server = this.#deps.adapters.findMcpAdapter(upstream.name);
    if (server === undefined || this.#stopped) return true;
    try {
      const capabilities = await server.capabilities();
      if (capabilities !== undefined) this.#capabilities.set(upstream.name, capabilities);
      const offered = await server.listAllPages('tools/list', 'tools');
      const offers = this.#dedupeOffers(
        upstream.name,
        offered.flatMap((tool) => this.#toPinOffer(upstream.name, tool)),
      );
      this.#listed.set(upstream.name, new Set(offers.map(({ tool }) => tool)));
      await recordOffers(this.#deps.db, upstream.name, offers);
      await this.#refreshPins();
      return true;
    } catch (error) {
      this.#warnOnce(
        `${upstream.name} ${String(error)}`,
        { upstream: upstream.name, err: String(error) },
        'The tools of an MCP server could not be listed. The listing is tried again.',
      );
      return false;
    }
  }

  /** Keeps the first of two tools with the same name, as the server itself does. */
  #dedupeOffers(upstream: string, offers: readonly PinOffer[]): PinOffer[] {
    const byName = new Map<string, PinOffer>();
    for (const offer of offers) {
      if (!byName.has(offer.tool)) byName.set(offer.tool, offer);
      else
        this.#warnOnce(
          `${upstream} ${offer.tool} twice`,
          { upstream, tool: offer.tool },
          'An MCP server lists a tool twice. The first one is imported.',
        );
    }
    const offered = [...byName.values()];
    if (offered.length > MAX_TOOLS_PER_SERVER)
      this.#warnOnce(
        `${upstream} too many`,
        { upstream, tools: offered.length },
        `An MCP server lists too many tools. The first ${MAX_TOOLS_PER_SERVER} are imported.`,
      );
    return offered.slice(0, MAX_TOOLS_PER_SERVER);
  }

  #toPinOffer(
    upstream: string,
    { name, title, description, inputSchema, outputSchema, annotations }: JsonObject,
  ): PinOffer[] {
    if (typeof name !== 'string' || name === '' || name.includes('\0')) return [];
    const definition: JsonObject = {
      name,
      ...(typeof title === 'string' ? { title } : {}),
      ...(typeof description === 'string' ? { description } : {}),
      ...(isJsonObject(inputSchema) ? { inputSchema } : {}),
      ...(isJsonObject(outputSchema) ? { outputSchema } : {}),
      ...(isJsonObject(annotations) ? { annotations } : {}),
    };
    const text = serializeDefinition(definition);
    if (text === undefined) {
      this.#warnOnce(
        `${upstream} ${name}`,
        { upstream, tool: name },
        'The definition of a tool is too long, too deep or has invalid characters. The tool is not imported.',
      );
      return [];
    }
    const digest = createHash('sha256').update(text).digest();
    const fields = { upstream, tool: name, digest: digest.toString('hex') };
    return [
      {
        tool: name,
        digest,
        definition: text,
        pinnedEntry: buildAuditEntry('tool_pinned', fields),
        changedEntry: buildAuditEntry('tool_changed', fields),
      },
    ];
  }

  async #refreshPins(): Promise<void> {
    const version = await readPinsVersion(this.#deps.db);
    const state = JSON.stringify([version, [...this.#listed].map(([name, tools]) => [name, [...tools].sort()])]);
    if (state === this.#lastState) return;
    this.#pins = await readPins(this.#deps.db);
    this.#lastState = state;
    this.#mergePolicies();
  }

  /** Replaces the merged policies only when a tool changed, because other code compares them by identity. */
  #mergePolicies(): void {
    let merged = this.#base;
    for (const { name } of this.#listImportingUpstreams()) {
      const { policies, skipped } = importMcpTools(merged, name, this.#listPinnedTools(name));
      merged = policies;
      for (const { name: tool, why } of skipped)
        this.#warnOnce(`${tool} ${why}`, { tool, why }, 'A tool of an MCP server is not imported.');
    }
    if (hasSameTools(merged, this.#merged)) return;
    this.#merged = merged;
    this.#notifier.notify('notifications/tools/list_changed', {});
  }

  #listPinnedTools(upstream: string): ListedMcpTool[] {
    const listed = this.#listed.get(upstream);
    return this.#pins
      .filter((pin) => pin.upstream === upstream && listed?.has(pin.tool) !== false)
      .map((pin) => {
        const offer = this.#parseDefinition(pin);
        if (pin.offered === null) return offer;
        const disabled = `${upstream} changed its definition since it was pinned; a person must accept the change (oncegate pins)`;
        this.#warnOnce(
          `${pin.upstream} ${pin.tool} ${pin.offeredDigest?.toString('hex')}`,
          { upstream, tool: pin.tool },
          `A tool is disabled: ${disabled}.`,
        );
        return { ...offer, disabled };
      });
  }

  /** Returns the same object for the same definition, so that its compiled schema is reused. */
  #parseDefinition({ digest, definition }: Pin): ListedMcpTool {
    const id = digest.toString('hex');
    const cached = this.#definitions.get(id);
    if (cached !== undefined) return cached;
    const parsed = JSON.parse(definition) as unknown as ListedMcpTool;
    if (this.#definitions.size >= 2 * this.#pins.length) this.#definitions.clear();
    this.#definitions.set(id, parsed);
    return parsed;
  }

  /** Subscribes to the change notifications of a server. Servers without them are listed at an interval. */
  #subscribe({ name }: Upstream): void {
    const server = this.#deps.adapters.findMcpAdapter(name);
    if (server === undefined) return;
    server.onChangeNotification((method, params) => {
      // Clients are notified of changed tools after the merge. Earlier they would still get the old list.
      if (method === 'notifications/tools/list_changed') this.#listToolsByName(name);
      else this.#notifier.notify(method, params);
    });
    void server.subscribeToLists();
  }

  #warnOnce(id: string, fields: object, message: string): void {
    if (this.#warned.has(id)) return;
    if (this.#warned.size >= MAX_REMEMBERED_WARNINGS) this.#warned.clear();
    this.#warned.add(id);
    this.#deps.log.warn(fields, message);
  }
}

/** The canonical text of a tool's definition, for digest and ledger; undefined if there is none. */
function serializeDefinition(definition: JsonObject): string | undefined {
  try {
    const text = canonicalize(definition);
    return text.length > MAX_DEFINITION_CHARS || text.includes('\\u0000') ? undefined : text;
  } catch {
    // The definition is nested too deeply, or contains a lone surrogate.
    return undefined;
  }
}

function hasSameTools(a: Policies, b: Policies): boolean {
  if (a.version !== b.version || a.upstreams !== b.upstreams || a.agents !== b.agents || a.tools.size !== b.tools.size)
    return false;
  for (const [name, tool] of a.tools) {
    const other = b.tools.get(name);
    if (other?.digest !== tool.digest || other.disabled !== tool.disabled) return false;
  }
  return true;
}
