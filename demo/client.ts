/** A minimal client of the gateway: `fetch`, a bearer key, and an idempotency key for each call. */
export class DemoClient {
  readonly #url: string;
  readonly #key: string;

  constructor(url: string, key: string) {
    this.#url = url;
    this.#key = key;
  }

  call(tool: string, args: object, options: DemoCallOptions = {}): Promise<DemoAnswer> {
    const { saga, dependsOn } = options;
    return this.send('POST', `/v1/tools/${tool}`, args, {
      ...(saga !== undefined && { 'oncegate-saga': saga }),
      ...(dependsOn !== undefined && { 'oncegate-depends-on': dependsOn }),
      ...(options.key !== undefined && { 'idempotency-key': options.key }),
      ...(options.wait !== undefined && { prefer: `wait=${options.wait}` }),
    });
  }

  /** Returns the result of a read that must succeed. */
  async read<T>(tool: string, args: object): Promise<T> {
    const answer = await this.call(tool, args);
    if (answer.status !== 200) throw new DemoError(`${tool} was expected to succeed, but: ${formatAnswer(answer)}`);
    return answer.body.result as T;
  }

  async send(
    method: 'GET' | 'POST',
    path: string,
    body?: object,
    headers: Record<string, string> = {},
  ): Promise<DemoAnswer> {
    const { response, text } = await this.#fetch(path, {
      method,
      headers: {
        authorization: `Bearer ${this.#key}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(70_000),
    });
    return {
      status: response.status,
      txn: response.headers.get('oncegate-txn'),
      state: response.headers.get('oncegate-state'),
      replayed: response.headers.get('idempotent-replayed') === 'true',
      retryAfter: Number(response.headers.get('retry-after') ?? Number.NaN),
      body: parseBody(text),
    };
  }

  async #fetch(path: string, init: RequestInit): Promise<{ response: Response; text: string }> {
    try {
      const response = await fetch(this.#url + path, init);
      return { response, text: await response.text() };
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
      throw new DemoError(
        `There is no gateway at ${this.#url} (${String(cause)}). Start one in another terminal with "npm start". If it listens elsewhere, set ONCEGATE_URL and ONCEGATE_DATA_DIR.`,
      );
    }
  }
}

export interface DemoCallOptions {
  readonly key?: string;
  /** How many seconds the gateway may wait before it answers 202. */
  readonly wait?: number;
  /** The saga that the call is a step of. */
  readonly saga?: string;
  /** The txn of the step that this step depends on, or `none`. Default: all earlier steps. */
  readonly dependsOn?: string;
}

export interface DemoAnswer {
  readonly status: number;
  readonly txn: string | null;
  readonly state: string | null;
  readonly replayed: boolean;
  /** In seconds; NaN without the header. */
  readonly retryAfter: number;
  readonly body: DemoAnswerBody;
}

/** The fields of an answer or a problem that the scenarios use. */
interface DemoAnswerBody {
  readonly result?: unknown;
  readonly state?: string;
  readonly attempts?: number;
  readonly code?: string;
  readonly detail?: string;
  readonly tools?: readonly { readonly name: string }[];
  readonly items?: readonly DemoApproval[];
  readonly saga?: string | null;
  readonly reason?: string | null;
  readonly by?: string | null;
  readonly steps?: readonly DemoSagaStep[];
  readonly plan?: readonly DemoRollbackStep[];
  readonly wouldEnd?: string;
}

export interface DemoSagaStep {
  readonly txn: string;
  readonly tool: string;
  readonly state: string;
  readonly waived?: boolean;
  readonly undo: { readonly state: string; readonly tool: string | null; readonly reason: string | null };
}

/** A step in the plan of a rollback. */
export interface DemoRollbackStep {
  readonly tool: string;
  readonly does: string;
  readonly why: string | null;
  readonly blockedBy: string | null;
  readonly undo: { readonly tool: string | null };
}

/** The fields of an approval that the scenarios use. */
export interface DemoApproval {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly args: { readonly to?: string; readonly subject?: string };
  readonly target: { readonly method: string; readonly url: string };
  readonly undo: { readonly kind: string };
  readonly digest: string;
}

/** The gateway did not do what a scenario expects. */
export class DemoError extends Error {
  override readonly name = 'DemoError';
}

export function formatAnswer({ status, body, state, replayed }: DemoAnswer): string {
  if (status >= 400) return `${status} ${body.code ?? ''}: ${body.detail ?? 'no reason given'}`;
  return `${status} ${state ?? body.state ?? ''}${replayed ? ', replayed' : ''}`;
}

function parseBody(text: string): DemoAnswerBody {
  try {
    return JSON.parse(text) as DemoAnswerBody;
  } catch {
    return { detail: text.slice(0, 200) };
  }
}
