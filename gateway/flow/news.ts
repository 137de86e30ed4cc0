import type { JsonObject } from '../domain/json.ts';

type Told = (method: string, params: JsonObject) => void;

/** However often a server says the same within this time, it is passed on once. */
const GATHER_MS = 100;

/** What servers say has changed, on its way to the clients. A server that says so without end must not flood them. */
export class News {
  readonly #told: Told[] = [];
  readonly #gathering = new Set<string>();

  onTold(told: Told): void {
    this.#told.push(told);
  }

  /** After a moment, and once for all that is heard of the same until then. */
  tell(method: string, params: JsonObject): void {
    const what = `${method} ${String(params['uri'] ?? '')}`;
    if (this.#gathering.has(what)) return;
    this.#gathering.add(what);
    setTimeout(() => {
      this.#gathering.delete(what);
      for (const told of this.#told) told(method, params);
    }, GATHER_MS).unref();
  }
}
