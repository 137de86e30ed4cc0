import { setTimeout as sleep } from 'node:timers/promises';
import type { Gateway } from '../support/gateway.ts';

export interface ReceivedEvent {
  readonly id: number | undefined;
  readonly name: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into events of every kind
  readonly data: any;
}

/** A client of `GET /admin/events` that keeps every event. */
export class SseClient {
  readonly events: ReceivedEvent[] = [];
  status = 0;
  text = '';
  isOver = false;
  readonly #stop = new AbortController();
  #reading: Promise<void> = Promise.resolve();

  static async open(gateway: Gateway, key: string, after?: number): Promise<SseClient> {
    const client = new SseClient();
    const response = await fetch(`${gateway.url}/admin/events`, {
      headers: { authorization: `Bearer ${key}`, ...(after === undefined ? {} : { 'last-event-id': String(after) }) },
      signal: client.#stop.signal,
    });
    client.status = response.status;
    client.#reading = client.#read(response);
    if (response.status !== 200) await client.#reading;
    return client;
  }

  /** Resolves with the first event that satisfies the condition, past or future. */
  waitForEvent(condition: (event: ReceivedEvent) => boolean): Promise<ReceivedEvent> {
    return this.#waitFor(() => this.events.find(condition));
  }

  /** Resolves when so many events have arrived. */
  async waitForCount(count: number): Promise<void> {
    await this.#waitFor(() => this.events[count - 1]);
  }

  async #waitFor(find: () => ReceivedEvent | undefined): Promise<ReceivedEvent> {
    for (const startedAt = performance.now(); performance.now() - startedAt < 20_000; await sleep(20)) {
      const found = find();
      if (found !== undefined) return found;
      if (this.isOver) break;
    }
    throw new Error(`The event did not arrive. Last events: ${JSON.stringify(this.events.slice(-20))}`);
  }

  /** The log indexes of the received events. */
  get ids(): number[] {
    return this.events.flatMap(({ id, name }) => (id === undefined || name === 'gap' ? [] : [id]));
  }

  /** Resolves when the gateway ends the stream. */
  waitForEnd(): Promise<void> {
    return this.#reading;
  }

  async close(): Promise<void> {
    this.#stop.abort();
    await this.#reading;
  }

  async #read(response: Response): Promise<void> {
    let rest = '';
    try {
      for await (const chunk of response.body ?? []) {
        const piece = Buffer.from(chunk).toString();
        this.text += piece;
        const blocks = (rest + piece).split('\n\n');
        rest = blocks.pop() ?? '';
        for (const block of blocks) this.#parseEvent(block);
      }
    } catch {
      // Either side broke the connection.
    }
    this.isOver = true;
  }

  #parseEvent(block: string): void {
    const field = (name: string) => new RegExp(`^${name}: (.*)$`, 'm').exec(block)?.[1];
    const [id, name, data] = [field('id'), field('event'), field('data')];
    if (name === undefined || data === undefined) return;
    this.events.push({ id: id === undefined ? undefined : Number(id), name, data: JSON.parse(data) });
  }
}
