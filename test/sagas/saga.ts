import { setTimeout as sleep } from 'node:timers/promises';
import { AGENT_KEY, type Gateway, type Reply } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';

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
    const reply = await gateway.post('/v1/sagas', body, agentKey);
    if (reply.status !== 201) throw new Error(`POST /v1/sagas answered ${reply.status} ${JSON.stringify(reply.body)}.`);
    return new TestSaga(gateway, reply.body.saga, agentKey);
  }

  /** Calls a tool as a step of the saga; `on` are the txns of the steps that it depends on. */
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

  /** Runs a step until it succeeds. Repeats a step that got 503 with the same key, as an agent would. */
  async runStep(tool: string, args: { readonly id: string }, on?: readonly string[]): Promise<string> {
    const deadline = performance.now() + 30_000;
    for (;;) {
      const answer = await this.callStep(tool, args, { key: args.id, ...(on === undefined ? {} : { on }) });
      if (answer.status === 200) return answer.body.txn;
      if (answer.status !== 503 || performance.now() > deadline)
        throw new Error(`${tool} answered ${answer.status} ${JSON.stringify(answer.body)}.`);
      await sleep(100);
    }
  }

  async read(): Promise<Reply['body']> {
    return (await this.gateway.get(`/v1/sagas/${this.id}`, this.agentKey)).body;
  }

  postAction(verb: string, body: object = {}, query = ''): Promise<Reply> {
    return this.gateway.post(`/v1/sagas/${this.id}/${verb}${query}`, body, this.agentKey);
  }

  admin(verb: string, body: object, query = ''): Promise<Reply> {
    return this.gateway.admin('POST', `/admin/sagas/${this.id}/${verb}${query}`, body);
  }

  rollback(body: object = {}, query = '?wait=20'): Promise<Reply> {
    return this.postAction('rollback', { reason: 'the test says so', ...body }, query);
  }

  /** Waits until the saga is neither open nor rolling back. The gateway may die meanwhile. */
  async waitUntilSettled(withinMs = 30_000): Promise<Reply['body']> {
    const read = () => this.read().catch(() => undefined);
    const isSettled = (saga: Reply['body']) => saga !== undefined && !['rolling_back', 'open'].includes(saga.state);
    return pollUntil(read, isSettled, {
      withinMs,
      explain: () => `Saga ${this.id} did not settle.\n${this.gateway.output}`,
    });
  }
}
