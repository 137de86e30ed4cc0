import { randomUUID } from 'node:crypto';
import type { JsonObject } from '../domain/json.ts';

/** What a client of the older revisions can do: it says so once, and every later request only names its session. */
const CAN = ['elicitation', 'sampling', 'roots'] as const;

/**
 * The id of a session. It carries what there is to know about its client, so that any replica understands it and none has to
 * remember it: there is nothing to expire, and nothing to look up.
 */
export function sessionFor(capabilities: JsonObject): string {
  const flags = CAN.map((name) => (capabilities[name] === undefined ? '-' : name.charAt(0))).join('');
  return `${randomUUID()}.${flags}`;
}

/** What the client of a session can do; nothing, if this is no session of ours. */
export function capabilitiesOf(session: string | undefined): JsonObject {
  const [, flags] = /^[0-9a-f-]{36}\.([a-z-]{3})$/.exec(session ?? '') ?? [];
  if (flags === undefined) return {};
  return Object.fromEntries(CAN.filter((_, at) => flags.charAt(at) !== '-').map((name) => [name, {}]));
}

interface Question {
  readonly agent: string;
  readonly settle: (response: JsonObject) => void;
}

/**
 * Questions that servers put to clients of the older revisions in the middle of a call. They go out on the stream of the
 * call, and their answers come in as requests of their own, to this process or not at all.
 */
export class Questions {
  readonly #open = new Map<string, Question>();

  /** Asks with an id that nobody can guess, and waits for the answer. */
  async ask(agent: string, send: (id: string) => Promise<void>, until: AbortSignal): Promise<JsonObject> {
    const id = randomUUID();
    try {
      return await new Promise<JsonObject>((resolve, reject) => {
        const giveUp = () => reject(new Error('the client is gone'));
        if (until.aborted) return giveUp();
        until.addEventListener('abort', giveUp, { once: true });
        this.#open.set(id, { agent, settle: resolve });
        send(id).catch(reject);
      });
    } finally {
      this.#open.delete(id);
    }
  }

  /** An answer came in. One that nobody waits for, or that another agent gives, is nothing to anybody. */
  answer(agent: string, response: JsonObject): void {
    const question = this.#open.get(String(response['id']));
    if (question?.agent === agent) question.settle(response);
  }
}
