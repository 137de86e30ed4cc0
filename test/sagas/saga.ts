import { setTimeout as sleep } from 'node:timers/promises';
import { AGENT_KEY, type Gateway, type Reply } from '../support/gateway.ts';

/** A saga as an agent uses it. */
export class TestSaga {
  readonly gateway: Gateway;
  readonly id: string;
  readonly agentKey: string;

  private constructor(gateway: Gateway, id: string, agentKey: string) {
    this.gateway = gateway;
    this.id = id;
    this.agentKey = agentKey;
  }

  static async open(gateway: Gateway, body: object = {}, agentKey: string = AGENT_KEY): Promise<TestSaga> {
    const reply = await postJson(gateway, '/v1/sagas', body, agentKey);
    if (reply.status !== 201) throw new Error(`${reply.status} ${JSON.stringify(reply.body)}`);
    return new TestSaga(gateway, reply.body.saga, agentKey);
  }

  /** Takes a step; `on` are the steps it rests on. */
  callStep(tool: string, args: object, options: { key?: string; on?: readonly string[]; headers?: object } = {}) {
    const { key, on, headers } = options;
    return this.gateway.call(tool, args, {
      ...(key === undefined ? {} : { key }),
      agentKey: this.agentKey,
      headers: {
        'oncegate-saga': this.id,
        ...(on === undefined ? {} : { 'oncegate-depends-on': on.length === 0 ? 'none' : on.join(', ') }),
        ...headers,
      },
    });
  }

  /** A step that succeeds. What could not be claimed in the bustle is asked for again with the same key, as an agent would. */
  async runStep(tool: string, args: { readonly id: string }, on?: readonly string[]): Promise<string> {
    const until = performance.now() + 30_000;
    for (;;) {
      const answer = await this.callStep(tool, args, { key: args.id, ...(on === undefined ? {} : { on }) });
      if (answer.status === 200) return answer.body.txn;
      if (answer.status !== 503 || performance.now() > until)
        throw new Error(`${tool} answered ${answer.status} ${JSON.stringify(answer.body)}`);
      await sleep(100);
    }
  }

  async read(): Promise<Reply['body']> {
    return (await this.gateway.get(`/v1/sagas/${this.id}`, this.agentKey)).body;
  }

  postAction(verb: string, body: object = {}, query = ''): Promise<Reply> {
    return postJson(this.gateway, `/v1/sagas/${this.id}/${verb}${query}`, body, this.agentKey);
  }

  admin(verb: string, body: object, query = ''): Promise<Reply> {
    return this.gateway.admin('POST', `/admin/sagas/${this.id}/${verb}${query}`, body);
  }

  rollback(body: object = {}, query = '?wait=20'): Promise<Reply> {
    return this.postAction('rollback', { reason: 'the test says so', ...body }, query);
  }

  /** The saga once its rollback is over, however it ended; the gateway may die meanwhile. */
  async waitUntilSettled(withinMs = 30_000): Promise<Reply['body']> {
    const until = performance.now() + withinMs;
    let last: Reply['body'];
    while (performance.now() < until) {
      last = (await this.read().catch(() => undefined)) ?? last;
      if (last !== undefined && last.state !== 'rolling_back' && last.state !== 'open') return last;
      await sleep(30);
    }
    throw new Error(`saga ${this.id} did not come to rest: ${JSON.stringify(last)}\n${this.gateway.output}`);
  }
}

export function postJson(gateway: Gateway, path: string, body: object, key: string = AGENT_KEY, headers: object = {}) {
  return gateway.request('POST', path, {
    body: JSON.stringify(body),
    key,
    headers: { 'content-type': 'application/json', ...headers },
  });
}
