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

/** How often a server is asked for its tools, and the pins are read that other replicas and people may have changed. */
const LIST_INTERVAL_MS = 30_000;
const RELIST_DELAY_MS = 200;
const LIST_RETRY_MS = 2_000;
const PIN_POLL_MS = 2_000;
/** A start does not wait longer than this for servers that are slow to list their tools. */
const MAX_START_WAIT_MS = 3_000;
const MAX_DEFINITION_CHARS = 262_144;
const MAX_REPORTED = 1_000;
/** Of one server: more than models can be shown anyway, and every tool that was ever offered keeps a row. */
const MAX_TOOLS_PER_SERVER = 2_000;

interface ImportDependencies {
  readonly db: Database;
  readonly adapters: AdapterRegistry;
  readonly log: { warn(fields: object, message: string): void };
}

/**
 * The tools that MCP servers bring in. Each is pinned as it is first seen; one of which its server later says something else
 * stays as it was pinned, and disabled, until a person accepts the change. The pins are in the ledger: every replica has
 * the same, and a server that is down at the start still has its tools.
 */
export class McpImports {
  readonly #deps: ImportDependencies;
  #base: Policies;
  #merged: Policies;
  #pins: readonly Pin[] = [];
  /** The names each server listed last; none yet when it could not be asked since this process began. */
  readonly #listed = new Map<string, ReadonlySet<string>>();
  readonly #listing = new Map<string, { again: boolean; done: Promise<void> }>();
  readonly #capabilities = new Map<string, JsonObject>();
  readonly #notifier = new ChangeNotifier();
  readonly #definitions = new Map<string, ListedMcpTool>();
  readonly #warned = new Set<string>();
  #lastVersion = '';
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #retries = new Map<string, NodeJS.Timeout>();
  #stopped = false;

  constructor(station: ImportDependencies, base: Policies) {
    this.#deps = station;
    this.#base = base;
    this.#merged = base;
  }

  get current(): Policies {
    return this.#merged;
  }

  pins(): readonly Pin[] {
    return this.#pins;
  }

  /** What a server said it can do, once it was reached. */
  capabilities(upstream: string): JsonObject | undefined {
    return this.#capabilities.get(upstream);
  }

  /** Told when what servers offer has changed: by the MCP notification about it. */
  onChange(told: (method: string, params: JsonObject) => void): void {
    this.#notifier.subscribe(told);
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

  /** The policies changed; the adapters know already. */
  replaceBase(base: Policies): void {
    this.#base = base;
    this.#mergePolicies();
    for (const upstream of this.#listImportingUpstreams()) this.#subscribe(upstream);
    void this.#listAll();
  }

  /** A person takes what is offered now, if it is what they saw. */
  async acceptPin(upstream: string, tool: string, digest: string, person: string, reason: string): Promise<Pin> {
    const which = { upstream, tool };
    const entry = buildAuditEntry('pin_accepted', { ...which, digest, person, reason });
    const accepted = await acceptOffer(this.#deps.db, which, Buffer.from(digest, 'hex'), person, entry);
    await this.#refreshPins();
    const pin = this.#pins.find((each) => each.upstream === upstream && each.tool === tool);
    if (pin === undefined) throw new GatewayError('not_found', `${upstream} has no tool ${tool.slice(0, 128)}.`);
    if (!accepted && pin.digest.toString('hex') !== digest)
      throw new GatewayError('conflict', `What ${upstream} says of ${tool} is not what you saw: look again.`);
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

  /** One listing of a server at a time: whatever is heard meanwhile leads to one more, a moment later. */
  #listTools(upstream: Upstream): Promise<void> {
    const { name } = upstream;
    const running = this.#listing.get(name);
    if (running !== undefined) {
      running.again = true;
      return running.done;
    }
    clearTimeout(this.#retries.get(name));
    const listing = { again: false, done: Promise.resolve() };
    this.#listing.set(name, listing);
    listing.done = this.#fetchTools(upstream).then(async (isListed) => {
      if (listing.again) await sleep(RELIST_DELAY_MS, undefined, { ref: false });
      this.#listing.delete(name);
      if (listing.again) await this.#listTools(upstream);
      else if (!isListed) this.#scheduleRetry(name);
    });
    return listing.done;
  }

  /** One at a time for each server, however many ways lead here. */
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
        'an MCP server could not be asked for its tools',
      );
      return false;
    }
  }

  /** Of two tools with one name nobody could say which is called: the first counts, as it does for the server itself. */
  #dedupeOffers(upstream: string, offers: readonly PinOffer[]): PinOffer[] {
    const byName = new Map<string, PinOffer>();
    for (const offer of offers) {
      if (!byName.has(offer.tool)) byName.set(offer.tool, offer);
      else this.#warnOnce(`${upstream} ${offer.tool} twice`, { upstream, tool: offer.tool }, 'a tool is listed twice');
    }
    const offered = [...byName.values()];
    if (offered.length > MAX_TOOLS_PER_SERVER)
      this.#warnOnce(
        `${upstream} too many`,
        { upstream, tools: offered.length },
        `only the first ${MAX_TOOLS_PER_SERVER} are taken in`,
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
        'a tool is described at too great a length or depth, or with characters that are none, and is not taken in',
      );
      return [];
    }
    const digest = createHash('sha256').update(text).digest();
    const what = { upstream, tool: name, digest: digest.toString('hex') };
    return [
      {
        tool: name,
        digest,
        definition: text,
        pinnedEntry: buildAuditEntry('tool_pinned', what),
        changedEntry: buildAuditEntry('tool_changed', what),
      },
    ];
  }

  async #refreshPins(): Promise<void> {
    const version = await readPinsVersion(this.#deps.db);
    const seen = JSON.stringify([version, [...this.#listed].map(([name, tools]) => [name, [...tools].sort()])]);
    if (seen === this.#lastVersion) return;
    this.#pins = await readPins(this.#deps.db);
    this.#lastVersion = seen;
    this.#mergePolicies();
  }

  /** Only when something is different: whoever holds the old policies compares by identity. */
  #mergePolicies(): void {
    let merged = this.#base;
    for (const { name } of this.#listImportingUpstreams()) {
      const { policies, skipped } = importMcpTools(merged, name, this.#listPinnedTools(name));
      merged = policies;
      for (const { name: tool, why } of skipped)
        this.#warnOnce(`${tool} ${why}`, { tool, why }, 'a tool of an MCP server is not taken in');
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
        const disabled = `${upstream} now says something else of it than what was pinned; a person must accept the change (oncegate pins)`;
        this.#warnOnce(
          `${pin.upstream} ${pin.tool} ${pin.offeredDigest?.toString('hex')}`,
          { upstream, tool: pin.tool },
          `tool disabled: ${disabled}`,
        );
        return { ...offer, disabled };
      });
  }

  /** The same object for the same definition: what was compiled for it is found again. */
  #parseDefinition({ digest, definition }: Pin): ListedMcpTool {
    const id = digest.toString('hex');
    const known = this.#definitions.get(id);
    if (known !== undefined) return known;
    const parsed = JSON.parse(definition) as unknown as ListedMcpTool;
    if (this.#definitions.size >= 2 * this.#pins.length) this.#definitions.clear();
    this.#definitions.set(id, parsed);
    return parsed;
  }

  /** Hears of changes at once where the server can say so; elsewhere it is asked from time to time. */
  #subscribe({ name }: Upstream): void {
    const server = this.#deps.adapters.findMcpAdapter(name);
    if (server === undefined) return;
    server.onChangeNotification((method, params) => {
      // Clients hear of tools when ours have changed: whoever asked sooner would be shown the old ones.
      if (method === 'notifications/tools/list_changed') this.#listToolsByName(name);
      else this.#notifier.notify(method, params);
    });
    void server.subscribeToLists();
  }

  #warnOnce(once: string, fields: object, message: string): void {
    if (this.#warned.has(once)) return;
    if (this.#warned.size >= MAX_REPORTED) this.#warned.clear();
    this.#warned.add(once);
    this.#deps.log.warn(fields, message);
  }
}

/** What a server says of a tool as it is compared and stored; undefined if it cannot be. */
function serializeDefinition(definition: JsonObject): string | undefined {
  try {
    const text = canonicalize(definition);
    return text.length > MAX_DEFINITION_CHARS || text.includes('\\u0000') ? undefined : text;
  } catch {
    // Nested too deeply to be walked, or half of a surrogate pair.
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
