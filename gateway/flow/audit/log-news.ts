import type { JsonObject } from '../../domain/json.ts';

type ChangeListener = (method: string, params: JsonObject) => void;

/** However often a server says the same within this time, it is passed on once. */
const DEBOUNCE_MS = 100;

/** What servers say has changed, on its way to the clients. A server that says so without end must not flood them. */
export class ChangeNotifier {
  readonly #listeners: ChangeListener[] = [];
  readonly #pending = new Set<string>();

  subscribe(told: ChangeListener): void {
    this.#listeners.push(told);
  }

  /** After a moment, and once for all that is heard of the same until then. */
  notify(method: string, params: JsonObject): void {
    const what = `${method} ${String(params['uri'] ?? '')}`;
    if (this.#pending.has(what)) return;
    this.#pending.add(what);
    setTimeout(() => {
      this.#pending.delete(what);
      for (const told of this.#listeners) told(method, params);
    }, DEBOUNCE_MS).unref();
  }
}
