import { randomUUID } from 'node:crypto';
import type { JsonObject } from '../domain/json.ts';

/** Capabilities of clients of older revisions. The client declares them once; later requests only name their session. */
const CAPABILITIES = ['elicitation', 'sampling', 'roots'] as const;

/**
 * Creates the id of a session. The id encodes the capabilities of the client, so that every replica understands it and none stores
 * sessions.
 */
export function createSessionId(capabilities: JsonObject): string {
  const flags = CAPABILITIES.map((name) => (capabilities[name] === undefined ? '-' : name.charAt(0))).join('');
  return `${randomUUID()}.${flags}`;
}

/** The capabilities that the session id encodes; none for an id that this gateway did not create. */
export function parseSessionCapabilities(session: string | undefined): JsonObject {
  const [, flags] = /^[0-9a-f-]{36}\.([a-z-]{3})$/.exec(session ?? '') ?? [];
  if (flags === undefined) return {};
  return Object.fromEntries(CAPABILITIES.filter((_, at) => flags.charAt(at) !== '-').map((name) => [name, {}]));
}

interface PendingClientRequest {
  readonly agent: string;
  readonly settle: (response: JsonObject) => void;
}

/**
 * Requests of upstream servers to clients of older revisions during a call. A request goes out on the stream of the call. Its response
 * arrives as a separate HTTP request, which must reach this process.
 */
export class ClientRequests {
  readonly #pending = new Map<string, PendingClientRequest>();

  /** Sends a request with an unguessable id and waits for the response. */
  async ask(agent: string, send: (id: string) => Promise<void>, until: AbortSignal): Promise<JsonObject> {
    const id = randomUUID();
    try {
      return await new Promise<JsonObject>((resolve, reject) => {
        const giveUp = () => reject(new Error('the client disconnected'));
        if (until.aborted) return giveUp();
        until.addEventListener('abort', giveUp, { once: true });
        this.#pending.set(id, { agent, settle: resolve });
        send(id).catch(reject);
      });
    } finally {
      this.#pending.delete(id);
    }
  }

  /** Delivers a response. Ignores responses without a pending request and responses of other agents. */
  answer(agent: string, response: JsonObject): void {
    const pending = this.#pending.get(String(response['id']));
    if (pending?.agent === agent) pending.settle(response);
  }
}
