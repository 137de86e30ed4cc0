import type { JsonObject } from '../../domain/json.ts';

type ChangeListener = (method: string, params: JsonObject) => void;

/** Equal notifications within this time are passed on once. */
const DEBOUNCE_MS = 100;

/** Passes change notifications of MCP servers on to clients. The debounce keeps a noisy server from flooding the clients. */
export class ChangeNotifier {
  readonly #listeners: ChangeListener[] = [];
  readonly #pending = new Set<string>();

  subscribe(listener: ChangeListener): void {
    this.#listeners.push(listener);
  }

  /** Notifies the listeners after `DEBOUNCE_MS`, once for all equal notifications until then. */
  notify(method: string, params: JsonObject): void {
    const key = `${method} ${String(params['uri'] ?? '')}`;
    if (this.#pending.has(key)) return;
    this.#pending.add(key);
    setTimeout(() => {
      this.#pending.delete(key);
      for (const notifyListener of this.#listeners) notifyListener(method, params);
    }, DEBOUNCE_MS).unref();
  }
}
