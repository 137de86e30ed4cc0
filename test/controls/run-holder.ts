import { setTimeout as sleep } from 'node:timers/promises';
import { AGENT_KEY, type CallOptions, type Gateway, type Reply } from '../support/gateway.ts';

export interface TakenRunBody {
  readonly run: string;
  readonly epoch: number;
  readonly drained: boolean;
  readonly open: readonly { readonly txn: string; readonly state: string; readonly epoch: number }[];
  // biome-ignore lint/suspicious/noExplicitAny: a checkpoint is any JSON
  readonly checkpoint: any;
}

/** One holder of a run. It always uses the epoch that it was given, even after another holder took the run over. */
export class RunHolder {
  readonly gateway: Gateway;
  readonly took: TakenRunBody;
  readonly agentKey: string;

  constructor(gateway: Gateway, took: TakenRunBody, agentKey: string) {
    this.gateway = gateway;
    this.took = took;
    this.agentKey = agentKey;
  }

  static async take(gateway: Gateway, name: string, query = '', agentKey: string = AGENT_KEY): Promise<RunHolder> {
    const deadline = performance.now() + 30_000;
    for (;;) {
      const reply = await takeRun(gateway, { name }, { query, agentKey });
      if (reply.status <= 201) return new RunHolder(gateway, reply.body, agentKey);
      // A ledger under load may answer 503. The holder then asks again, as an agent would.
      if (reply.status !== 503 || performance.now() > deadline)
        throw new Error(`${reply.status} ${JSON.stringify(reply.body)}`);
      await sleep(100);
    }
  }

  get headers(): Record<string, string> {
    return { 'oncegate-run': this.took.run, 'oncegate-epoch': String(this.took.epoch) };
  }

  call(tool: string, args: object, options: CallOptions = {}): Promise<Reply> {
    return this.gateway.call(tool, args, {
      agentKey: this.agentKey,
      ...options,
      headers: { ...this.headers, ...options.headers },
    });
  }

  checkpoint(value: unknown): Promise<Reply> {
    return this.checkpointText(JSON.stringify(value));
  }

  checkpointText(text: string): Promise<Reply> {
    return this.#sendAction('PUT', 'checkpoint', text);
  }

  postAction(verb: 'heartbeat' | 'finish'): Promise<Reply> {
    return this.#sendAction('POST', verb, '{}');
  }

  read(query = ''): Promise<Reply> {
    return this.gateway.get(`/v1/runs/${this.took.run}${query}`, this.agentKey);
  }

  history(query = ''): Promise<Reply> {
    return this.gateway.get(`/v1/runs/${this.took.run}/calls${query}`, this.agentKey);
  }

  #sendAction(method: string, verb: string, body: string): Promise<Reply> {
    return this.gateway.request(method, `/v1/runs/${this.took.run}/${verb}`, {
      key: this.agentKey,
      body,
      headers: { 'content-type': 'application/json', 'oncegate-epoch': String(this.took.epoch) },
    });
  }
}

export function takeRun(
  gateway: Gateway,
  body: object,
  options: { readonly key?: string; readonly query?: string; readonly agentKey?: string } = {},
): Promise<Reply> {
  return gateway.request('POST', `/v1/runs${options.query ?? ''}`, {
    key: options.agentKey ?? AGENT_KEY,
    body: JSON.stringify(body),
    headers: {
      'content-type': 'application/json',
      ...(options.key === undefined ? {} : { 'idempotency-key': options.key }),
    },
  });
}
