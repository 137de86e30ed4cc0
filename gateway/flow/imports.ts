import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Registry } from '../../adapters/registry.ts';
import { auditEntry } from '../domain/audit.ts';
import { canonical } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import { isObject, type JsonObject } from '../domain/json.ts';
import type { Policies, Upstream } from '../domain/policy.ts';
import type { Database } from '../ledger/db.ts';
import { acceptOffer, noteOffers, type Offer, type Pin, pinsVersion, readPins } from '../ledger/pins.ts';
import { type OfferedTool, withImported } from '../policy/imported.ts';
import { News } from './news.ts';

export type { Pin };

/** How often a server is asked for its tools, and the pins are read that other replicas and people may have changed. */
const LIST_EVERY_MS = 30_000;
const LIST_AGAIN_MS = 200;
const LIST_RETRY_MS = 2_000;
const READ_EVERY_MS = 2_000;
/** A start does not wait longer than this for servers that are slow to list their tools. */
const START_MS = 3_000;
const MOST_DEFINITION = 262_144;
const MOST_REPORTED = 1_000;
/** Of one server: more than models can be shown anyway, and every tool that was ever offered keeps a row. */
const MOST_TOOLS = 2_000;

interface Needs {
  readonly db: Database;
  readonly adapters: Registry;
  readonly log: { warn(fields: object, message: string): void };
}

/**
 * The tools that MCP servers bring in. Each is pinned as it is first seen; one of which its server later says something else
 * stays as it was pinned, and disabled, until a person accepts the change. The pins are in the ledger: every replica has
 * the same, and a server that is down at the start still has its tools.
 */
export class Imports {
  readonly #station: Needs;
  #base: Policies;
  #merged: Policies;
  #pins: readonly Pin[] = [];
  /** The names each server listed last; none yet when it could not be asked since this process began. */
  readonly #listed = new Map<string, ReadonlySet<string>>();
  readonly #listing = new Map<string, { again: boolean; done: Promise<void> }>();
  readonly #capabilities = new Map<string, JsonObject>();
  readonly #news = new News();
  readonly #definitions = new Map<string, OfferedTool>();
  readonly #reported = new Set<string>();
  #seen = '';
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #retries = new Map<string, NodeJS.Timeout>();
  #stopped = false;

  constructor(station: Needs, base: Policies) {
    this.#station = station;
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
    this.#news.onTold(told);
  }

  async start(): Promise<void> {
    await this.#read();
    const listed = Promise.all(this.#sources().map((upstream) => this.#list(upstream)));
    await Promise.race([listed, new Promise((resolve) => this.#timers.push(setTimeout(resolve, START_MS)))]);
    for (const upstream of this.#sources()) this.#follow(upstream);
    this.#timers.push(
      setInterval(() => void this.#read().catch(() => {}), READ_EVERY_MS),
      setInterval(() => void this.#listAll(), LIST_EVERY_MS),
    );
    for (const timer of this.#timers) timer.unref();
  }

  /** The policies changed; the adapters know already. */
  use(base: Policies): void {
    this.#base = base;
    this.#merge();
    for (const upstream of this.#sources()) this.#follow(upstream);
    void this.#listAll();
  }

  /** A person takes what is offered now, if it is what they saw. */
  async accept(upstream: string, tool: string, digest: string, person: string, reason: string): Promise<Pin> {
    const which = { upstream, tool };
    const entry = auditEntry('pin_accepted', { ...which, digest, person, reason });
    const accepted = await acceptOffer(this.#station.db, which, Buffer.from(digest, 'hex'), person, entry);
    await this.#read();
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

  #sources(): Upstream[] {
    return [...this.#base.upstreams.values()].filter(
      ({ adapter, import: wanted }) => adapter === 'mcp' && wanted !== undefined,
    );
  }

  async #listAll(): Promise<void> {
    await Promise.all(this.#sources().map((upstream) => this.#list(upstream)));
  }

  /** One listing of a server at a time: whatever is heard meanwhile leads to one more, a moment later. */
  #list(upstream: Upstream): Promise<void> {
    const { name } = upstream;
    const running = this.#listing.get(name);
    if (running !== undefined) {
      running.again = true;
      return running.done;
    }
    clearTimeout(this.#retries.get(name));
    const listing = { again: false, done: Promise.resolve() };
    this.#listing.set(name, listing);
    listing.done = this.#listOnce(upstream).then(async (isListed) => {
      if (listing.again) await sleep(LIST_AGAIN_MS, undefined, { ref: false });
      this.#listing.delete(name);
      if (listing.again) await this.#list(upstream);
      else if (!isListed) this.#listLater(name);
    });
    return listing.done;
  }

  /** One at a time for each server, however many ways lead here. */
  #listLater(name: string): void {
    clearTimeout(this.#retries.get(name));
    const timer = setTimeout(() => this.#listNamed(name), LIST_RETRY_MS);
    this.#retries.set(name, timer);
    timer.unref();
  }

  #listNamed(name: string): void {
    const upstream = this.#sources().find((source) => source.name === name);
    if (upstream !== undefined) void this.#list(upstream);
  }

  async #listOnce(upstream: Upstream): Promise<boolean> {
    const server = this.#station.adapters.mcp(upstream.name);
    if (server === undefined || this.#stopped) return true;
    try {
      const capabilities = await server.capabilities();
      if (capabilities !== undefined) this.#capabilities.set(upstream.name, capabilities);
      const offered = await server.list('tools/list', 'tools');
      const offers = this.#unique(
        upstream.name,
        offered.flatMap((tool) => this.#offer(upstream.name, tool)),
      );
      this.#listed.set(upstream.name, new Set(offers.map(({ tool }) => tool)));
      await noteOffers(this.#station.db, upstream.name, offers);
      await this.#read();
      return true;
    } catch (error) {
      this.#report(
        `${upstream.name} ${String(error)}`,
        { upstream: upstream.name, err: String(error) },
        'an MCP server could not be asked for its tools',
      );
      return false;
    }
  }

  /** Of two tools with one name nobody could say which is called: the first counts, as it does for the server itself. */
  #unique(upstream: string, offers: readonly Offer[]): Offer[] {
    const byName = new Map<string, Offer>();
    for (const offer of offers) {
      if (!byName.has(offer.tool)) byName.set(offer.tool, offer);
      else this.#report(`${upstream} ${offer.tool} twice`, { upstream, tool: offer.tool }, 'a tool is listed twice');
    }
    const offered = [...byName.values()];
    if (offered.length > MOST_TOOLS)
      this.#report(
        `${upstream} too many`,
        { upstream, tools: offered.length },
        `only the first ${MOST_TOOLS} are taken in`,
      );
    return offered.slice(0, MOST_TOOLS);
  }

  #offer(upstream: string, { name, title, description, inputSchema, outputSchema, annotations }: JsonObject): Offer[] {
    if (typeof name !== 'string' || name === '' || name.includes('\0')) return [];
    const definition: JsonObject = {
      name,
      ...(typeof title === 'string' ? { title } : {}),
      ...(typeof description === 'string' ? { description } : {}),
      ...(isObject(inputSchema) ? { inputSchema } : {}),
      ...(isObject(outputSchema) ? { outputSchema } : {}),
      ...(isObject(annotations) ? { annotations } : {}),
    };
    const text = written(definition);
    if (text === undefined) {
      this.#report(
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
        pinned: auditEntry('tool_pinned', what),
        changed: auditEntry('tool_changed', what),
      },
    ];
  }

  async #read(): Promise<void> {
    const version = await pinsVersion(this.#station.db);
    const seen = JSON.stringify([version, [...this.#listed].map(([name, tools]) => [name, [...tools].sort()])]);
    if (seen === this.#seen) return;
    this.#pins = await readPins(this.#station.db);
    this.#seen = seen;
    this.#merge();
  }

  /** Only when something is different: whoever holds the old policies compares by identity. */
  #merge(): void {
    let merged = this.#base;
    for (const { name } of this.#sources()) {
      const { policies, skipped } = withImported(merged, name, this.#offeredBy(name));
      merged = policies;
      for (const { name: tool, why } of skipped)
        this.#report(`${tool} ${why}`, { tool, why }, 'a tool of an MCP server is not taken in');
    }
    if (sameTools(merged, this.#merged)) return;
    this.#merged = merged;
    this.#news.tell('notifications/tools/list_changed', {});
  }

  #offeredBy(upstream: string): OfferedTool[] {
    const listed = this.#listed.get(upstream);
    return this.#pins
      .filter((pin) => pin.upstream === upstream && listed?.has(pin.tool) !== false)
      .map((pin) => {
        const offer = this.#parsed(pin);
        if (pin.offered === null) return offer;
        const disabled = `${upstream} now says something else of it than what was pinned; a person must accept the change (oncegate pins)`;
        this.#report(
          `${pin.upstream} ${pin.tool} ${pin.offeredDigest?.toString('hex')}`,
          { upstream, tool: pin.tool },
          `tool disabled: ${disabled}`,
        );
        return { ...offer, disabled };
      });
  }

  /** The same object for the same definition: what was compiled for it is found again. */
  #parsed({ digest, definition }: Pin): OfferedTool {
    const id = digest.toString('hex');
    const known = this.#definitions.get(id);
    if (known !== undefined) return known;
    const parsed = JSON.parse(definition) as unknown as OfferedTool;
    if (this.#definitions.size >= 2 * this.#pins.length) this.#definitions.clear();
    this.#definitions.set(id, parsed);
    return parsed;
  }

  /** Hears of changes at once where the server can say so; elsewhere it is asked from time to time. */
  #follow({ name }: Upstream): void {
    const server = this.#station.adapters.mcp(name);
    if (server === undefined) return;
    server.onNews((method, params) => {
      // Clients hear of tools when ours have changed: whoever asked sooner would be shown the old ones.
      if (method === 'notifications/tools/list_changed') this.#listNamed(name);
      else this.#news.tell(method, params);
    });
    void server.follow();
  }

  #report(once: string, fields: object, message: string): void {
    if (this.#reported.has(once)) return;
    if (this.#reported.size >= MOST_REPORTED) this.#reported.clear();
    this.#reported.add(once);
    this.#station.log.warn(fields, message);
  }
}

/** What a server says of a tool as it is compared and stored; undefined if it cannot be. */
function written(definition: JsonObject): string | undefined {
  try {
    const text = canonical(definition);
    return text.length > MOST_DEFINITION || text.includes('\\u0000') ? undefined : text;
  } catch {
    // Nested too deeply to be walked, or half of a surrogate pair.
    return undefined;
  }
}

function sameTools(a: Policies, b: Policies): boolean {
  if (a.version !== b.version || a.upstreams !== b.upstreams || a.agents !== b.agents || a.tools.size !== b.tools.size)
    return false;
  for (const [name, tool] of a.tools) {
    const other = b.tools.get(name);
    if (other?.digest !== tool.digest || other.disabled !== tool.disabled) return false;
  }
  return true;
}
