import type { CallOutcome, Problem } from './outcome.ts';

export interface OncegateOptions {
  /** The URL of the gateway (default `ONCEGATE_URL`, else `http://127.0.0.1:8080`). */
  readonly url?: string;
  /** The agent's bearer key (default `ONCEGATE_KEY`). */
  readonly key?: string;
  /** How many requests one call may make, all with the same key (default 5). */
  readonly attempts?: number;
  /** For how many milliseconds a call may take before it is reported as not finished (default 60 000). */
  readonly patience?: number;
  readonly fetch?: typeof fetch;
}

export interface ToolDescription {
  readonly name: string;
  readonly description: string;
  /** JSON Schema of the arguments. */
  readonly input: Record<string, unknown>;
  readonly effect: 'read' | 'write';
}

export interface CallOptions {
  /** The idempotency key: a new one for each call, the same one for every retry. */
  readonly key: string;
  readonly signal?: AbortSignal | undefined;
}

type GatewayResponse = { readonly response: Response; readonly body: Record<string, unknown> };

const MAX_WAIT_SECONDS = 55;
const BASE_BACKOFF_MS = 200;

/** Empty in runtimes without `process.env`. */
const environment: Readonly<Record<string, string | undefined>> =
  (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {};

/** Calls the tools of a gateway with the key of one agent. */
export class OncegateClient {
  readonly #url: string;
  readonly #key: string;
  readonly #attempts: number;
  readonly #timeoutMs: number;
  readonly #fetch: typeof fetch;

  constructor(options: OncegateOptions = {}) {
    const key = options.key ?? environment['ONCEGATE_KEY'];
    if (!key) throw new Error("The agent's key is missing. Set ONCEGATE_KEY, or pass `key`.");
    this.#url = (options.url ?? environment['ONCEGATE_URL'] ?? 'http://127.0.0.1:8080').replace(/\/+$/, '');
    this.#key = key;
    this.#attempts = options.attempts ?? 5;
    this.#timeoutMs = options.patience ?? 60_000;
    this.#fetch = options.fetch ?? fetch;
  }

  /** The tools that this agent may call. */
  async tools(): Promise<ToolDescription[]> {
    const { response, body } = await this.#request('GET', '/v1/tools');
    if (!response.ok)
      throw new Error(`The gateway did not list its tools: ${response.status} ${String(body['detail'] ?? '')}`);
    return body['tools'] as ToolDescription[];
  }

  /**
   * Calls a tool. Retries lost and unfinished requests with the same key, so the gateway answers for the first call and
   * makes no second one.
   */
  async call(tool: string, args: unknown, { key, signal }: CallOptions): Promise<CallOutcome> {
    const deadline = Date.now() + this.#timeoutMs;
    let last: CallOutcome | undefined;
    for (let attempt = 1; attempt <= this.#attempts; attempt++) {
      const answer = await this.#send(tool, args, key, deadline, signal);
      last = mergeOutcome(last, answer === undefined ? undefined : toOutcome(answer, key), key);
      const pause = computeRetryDelayMs(answer, attempt);
      if (pause === undefined || Date.now() + pause >= deadline) return last;
      await sleep(pause, signal);
    }
    return last ?? { kind: 'unknown', key };
  }

  async #send(
    tool: string,
    args: unknown,
    key: string,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<GatewayResponse | undefined> {
    const wait = Math.max(0, Math.min(MAX_WAIT_SECONDS, Math.floor((deadline - Date.now()) / 1000)));
    try {
      return await this.#request('POST', `/v1/tools/${encodeURIComponent(tool)}`, {
        headers: { 'content-type': 'application/json', 'idempotency-key': key, prefer: `wait=${wait}` },
        body: JSON.stringify(args ?? {}),
        ...(signal !== undefined && { signal }),
      });
    } catch (error) {
      signal?.throwIfAborted();
      // fetch throws a TypeError if the network fails; a SyntaxError means that the answer was cut off.
      if (error instanceof TypeError || error instanceof SyntaxError) return undefined;
      throw error;
    }
  }

  async #request(method: string, path: string, init: RequestInit = {}): Promise<GatewayResponse> {
    const response = await this.#fetch(this.#url + path, {
      ...init,
      method,
      redirect: 'error',
      headers: { ...(init.headers as Record<string, string>), authorization: `Bearer ${this.#key}` },
    });
    const text = await response.text();
    const isJson = /json/.test(response.headers.get('content-type') ?? '');
    return { response, body: isJson ? (JSON.parse(text) as Record<string, unknown>) : {} };
  }
}

/**
 * Combines the known outcome with the newest one. A lost connection disproves nothing. A refusal of this request says
 * nothing about an earlier request that may have arrived, unless it asks for a new key: then it is about the call itself.
 */
function mergeOutcome(known: CallOutcome | undefined, newest: CallOutcome | undefined, key: string): CallOutcome {
  const isNothingSent = known === undefined || known.kind === 'refused';
  if (newest === undefined) return isNothingSent ? { kind: 'unknown', key } : known;
  if (isNothingSent || newest.kind !== 'refused' || newest.problem.retry === 'new_key') return newest;
  return known;
}

function toOutcome({ response, body }: GatewayResponse, key: string): CallOutcome {
  const txn = typeof body['txn'] === 'string' ? body['txn'] : '';
  if (response.status === 200 && txn !== '' && body['state'] === 'succeeded')
    return { kind: 'done', txn, result: body['result'] ?? null, replayed: body['replayed'] === true };
  if (response.status === 202 && txn !== '') {
    const { kind, until } = (body['hold'] ?? {}) as Record<string, unknown>;
    const state = String(body['state']);
    return { kind: 'pending', txn, state, ...(kind === 'delay' && { leavesAt: String(until) }) };
  }
  const problem = toProblem(response, body);
  // The answer for this key was deleted by retention, so the call may have had its effect.
  if (problem.code === 'key_expired') return { kind: 'unknown', ...(txn !== '' && { txn }), problem, key };
  if (problem.code === 'in_progress') return { kind: 'pending', txn, state: 'sending' };
  // `same_key` means that the call exists, and that its outcome is not known yet.
  if (problem.retry === 'same_key') return { kind: 'unknown', ...(txn !== '' && { txn }), problem, key };
  return { kind: 'refused', problem };
}

/** An answer without a code comes from a proxy before the gateway; it says nothing about the call. */
function toProblem(response: Response, body: Record<string, unknown>): Problem {
  if (typeof body['code'] === 'string') return body as unknown as Problem;
  const detail = 'The answer did not come from the gateway.';
  return { code: 'unknown', title: `HTTP ${response.status}`, detail, status: response.status, retry: 'same_key' };
}

/** How long to wait before the next request; undefined if a retry does not help. */
function computeRetryDelayMs(answer: GatewayResponse | undefined, attempt: number): number | undefined {
  const backoff = BASE_BACKOFF_MS * 2 ** (attempt - 1) * (0.5 + Math.random() / 2);
  if (answer === undefined) return backoff;
  const { response, body } = answer;
  const isPending = response.status === 202;
  const canRetry =
    body['retry'] === 'same_key' || body['retry'] === 'after_delay' || (response.status >= 500 && !body['code']);
  // Report a doubt at once: ending it may take a person.
  if (!isPending && (!canRetry || isInDoubt(body))) return undefined;
  const seconds = Number(response.headers.get('retry-after') ?? Number.NaN);
  return Number.isFinite(seconds) ? Math.max(seconds * 1000, backoff) : backoff;
}

/** False if the ledger failed in the middle of a call (another `state`), because that ends soon. */
function isInDoubt({ code, state }: Record<string, unknown>): boolean {
  return code === 'in_doubt' && state === 'in_doubt';
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, { once: true });
  });
}
