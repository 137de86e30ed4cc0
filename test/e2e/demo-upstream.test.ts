import { appendFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { HttpAdapter } from '../../adapters/http/http-adapter.ts';
import { registerDemoServices } from '../../demo/services.ts';
import type { Outcome } from '../../gateway/domain/attempts/adapter.ts';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import type { Policies } from '../../gateway/domain/policy.ts';
import { renderUndoArguments } from '../../gateway/policy/compile/render-undo-arguments.ts';
import { formatFault, loadPolicies } from '../../gateway/policy/load-policies.ts';
import { runPolicyTests } from '../../gateway/policy/policy-tests.ts';

const TOKEN = 'demo-token-of-the-tests';
const BEARER = { authorization: `Bearer ${TOKEN}` };
const CHARGE = { amount: 1250, currency: 'usd', card: 'card_visa_4242', order: 'A-1' };

let directory: string;
let stateFile: string;
const running: FastifyInstance[] = [];

beforeEach(async () => {
  directory = await mkdtemp(path.join(tmpdir(), 'oncegate-demo-'));
  stateFile = path.join(directory, 'state', 'demo.jsonl');
});

afterEach(async () => {
  await Promise.all(running.splice(0).map((app) => app.close()));
  await rm(directory, { recursive: true });
});

/** Starts the demo services. A second start on the same file acts as another replica or as a restart. */
async function start(): Promise<FastifyInstance> {
  const app = Fastify({ forceCloseConnections: true });
  running.push(app);
  await app.register(registerDemoServices, { prefix: '/demo', stateFile, token: TOKEN });
  await app.ready();
  return app;
}

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

async function request(app: FastifyInstance, method: Method, url: string, body?: object, key?: string) {
  const headers = { ...BEARER, ...(key !== undefined && { 'idempotency-key': key }) };
  const answer = await app.inject({ method, url: `/demo${url}`, headers, ...(body && { payload: body }) });
  return { status: answer.statusCode, body: answer.json() };
}

async function effects(app: FastifyInstance) {
  return (await request(app, 'GET', '/effects')).body;
}

describe('the demo services', () => {
  it.each([undefined, 'Bearer wrong', TOKEN])('refuse the authorization %s', async (authorization) => {
    const app = await start();
    for (const url of ['/payments/charges', '/tickets', '/files', '/effects']) {
      const answer = await app.inject({ url: `/demo${url}`, headers: { ...(authorization && { authorization }) } });
      expect(answer.statusCode, url).toBe(401);
    }
  });

  it('answer unknown routes and bad input with their own errors', async () => {
    const app = await start();
    expect(await request(app, 'GET', '/nothing')).toMatchObject({
      status: 404,
      body: { error: { code: 'not_found' } },
    });
    expect(await request(app, 'POST', '/tickets', { title: 7 })).toMatchObject({ status: 422 });
    const headers = { ...BEARER, 'content-type': 'application/json' };
    const broken = await app.inject({ method: 'POST', url: '/demo/mail', headers, payload: '{' });
    expect(broken.statusCode).toBe(400);
  });

  it('parse bodies themselves, whatever the surrounding app does', async () => {
    const app = Fastify();
    running.push(app);
    app.removeAllContentTypeParsers();
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body));
    app.setNotFoundHandler((_request, reply) => reply.code(418).send());
    await app.register(registerDemoServices, { prefix: '/demo', stateFile, token: TOKEN });
    expect(await request(app, 'PUT', '/files/a', { content: 'x' })).toMatchObject({ status: 200, body: { size: 1 } });
    expect((await app.inject('/elsewhere')).statusCode).toBe(418);
  });
});

describe('payments', () => {
  it('charges once per key, and answers a repeat with the same charge', async () => {
    const app = await start();
    const first = await request(app, 'POST', '/payments/charges', CHARGE, 'k1');
    const again = await request(app, 'POST', '/payments/charges', CHARGE, 'k1');
    expect(first).toMatchObject({ status: 201, body: { amount: 1250, order: 'A-1', last4: '4242', refunded: false } });
    expect(first.body.id).toMatch(/^ch_/);
    expect(first.body).not.toHaveProperty('card');
    expect(again).toEqual({ status: 200, body: first.body });
    expect(await effects(app)).toMatchObject({ payments: { charges: 1 } });
  });

  it('refuses a charge without a key, under a used key, or for a declined card', async () => {
    const app = await start();
    await request(app, 'POST', '/payments/charges', CHARGE, 'k1');
    const other = { ...CHARGE, amount: 1 };
    expect(await request(app, 'POST', '/payments/charges', CHARGE)).toMatchObject({ status: 400 });
    expect(await request(app, 'POST', '/payments/charges', other, 'k1')).toMatchObject({ status: 422 });
    const declined = { ...CHARGE, card: 'card_declined' };
    // The message omits the card's token: the gateway redacts it, which would hide the reason.
    const refusal = { status: 422, body: { error: { code: 'declined', message: 'The card was declined.' } } };
    expect(await request(app, 'POST', '/payments/charges', declined, 'k2')).toEqual(refusal);
    expect(await effects(app)).toMatchObject({ payments: { charges: 1 } });
  });

  it('refunds a charge once', async () => {
    const app = await start();
    const { body: charge } = await request(app, 'POST', '/payments/charges', CHARGE, 'k1');
    const refunds = `/payments/charges/${charge.id}/refunds`;
    const first = await request(app, 'POST', refunds, {}, 'r1');
    expect(first).toMatchObject({ status: 201, body: { charge: charge.id, amount: 1250 } });
    expect(await request(app, 'POST', refunds, {}, 'r1')).toEqual({ status: 200, body: first.body });
    expect(await request(app, 'POST', refunds, {}, 'r2')).toMatchObject({ status: 422 });
    expect(await request(app, 'POST', '/payments/charges/ch_0/refunds', {}, 'r3')).toMatchObject({ status: 404 });
    expect(await request(app, 'GET', `/payments/charges/${charge.id}`)).toMatchObject({ body: { refunded: true } });
    expect(await effects(app)).toMatchObject({ payments: { charges: 1, refunds: 1 } });
  });

  it('finds charges by card and order', async () => {
    const app = await start();
    await request(app, 'POST', '/payments/charges', CHARGE, 'k1');
    await request(app, 'POST', '/payments/charges', { amount: 1, currency: 'usd', card: 'card_b' }, 'k2');
    const count = async (query: string) =>
      (await request(app, 'GET', `/payments/charges${query}`)).body.charges.length as number;
    expect(await count('')).toBe(2);
    expect(await count('?card=card_b')).toBe(1);
    expect(await count('?order=A-1')).toBe(1);
    expect(await count('?card=card_b&order=A-1')).toBe(0);
    expect(await request(app, 'GET', '/payments/charges/ch_0')).toMatchObject({ status: 404 });
  });
});

describe('tickets, files and mail', () => {
  it('opens a ticket per request, finds tickets by reference, and closes a ticket once', async () => {
    const app = await start();
    const input = { title: 'The printer is on fire', reference: 'R-1' };
    const { body: ticket } = await request(app, 'POST', '/tickets', input);
    await request(app, 'POST', '/tickets', input);
    await request(app, 'POST', '/tickets', { ...input, reference: 'R-2' });
    expect((await request(app, 'GET', '/tickets?reference=R-1')).body.tickets).toHaveLength(2);
    const closed = await request(app, 'POST', `/tickets/${ticket.id}/close`);
    expect(closed).toEqual({ status: 200, body: { ...ticket, state: 'closed' } });
    expect(await request(app, 'POST', `/tickets/${ticket.id}/close`)).toEqual(closed);
    expect(await request(app, 'POST', '/tickets/tk_0/close')).toMatchObject({ status: 404 });
    expect(await effects(app)).toMatchObject({ tickets: { opened: 3, closed: 1 } });
  });

  it('puts, lists, reads and deletes files', async () => {
    const app = await start();
    await request(app, 'PUT', '/files/a.txt', { content: 'old' });
    await request(app, 'PUT', '/files/a.txt', { content: 'newer' });
    expect(await request(app, 'GET', '/files/a.txt')).toEqual({
      status: 200,
      body: { name: 'a.txt', content: 'newer' },
    });
    expect((await request(app, 'GET', '/files')).body).toEqual({ files: [{ name: 'a.txt', size: 5 }] });
    const deleted = await request(app, 'DELETE', '/files/a.txt');
    expect(deleted.status).toBe(200);
    expect(await request(app, 'DELETE', '/files/a.txt')).toEqual(deleted);
    expect(await request(app, 'GET', '/files/a.txt')).toMatchObject({ status: 404 });
    expect(await effects(app)).toMatchObject({ files: { puts: 2, deletes: 1 } });
  });

  it('restores a file to earlier content or to absence, repeatedly', async () => {
    const app = await start();
    await request(app, 'PUT', '/files/a.txt', { content: 'new' });
    for (const _ of [1, 2])
      expect(await request(app, 'POST', '/files/a.txt/restore', { content: 'old' })).toMatchObject({ status: 200 });
    expect(await request(app, 'GET', '/files/a.txt')).toMatchObject({ body: { content: 'old' } });
    for (const _ of [1, 2])
      expect(await request(app, 'POST', '/files/a.txt/restore', { content: null })).toMatchObject({ status: 200 });
    expect(await request(app, 'GET', '/files/a.txt')).toMatchObject({ status: 404 });
    expect(await request(app, 'POST', '/files/a.txt/restore', {})).toMatchObject({ status: 422 });
    expect(await effects(app)).toMatchObject({ files: { puts: 1, deletes: 0, restores: 4 } });
  });

  it('sends one mail per request', async () => {
    const app = await start();
    const mail = { to: 'ann@example.com', subject: 'Hello', body: 'Hi Ann' };
    expect(await request(app, 'POST', '/mail', mail)).toMatchObject({ status: 202 });
    await request(app, 'POST', '/mail', mail);
    expect(await effects(app)).toMatchObject({ mail: { sent: 2 } });
  });
});

describe('the journal', () => {
  it('restores the same state after a restart', async () => {
    const before = await start();
    const { body: charge } = await request(before, 'POST', '/payments/charges', CHARGE, 'k1');
    await request(before, 'POST', `/payments/charges/${charge.id}/refunds`, {}, 'r1');
    await request(before, 'POST', '/tickets', { title: 't', reference: 'R-1' });
    await request(before, 'PUT', '/files/a', { content: 'x' });
    const counted = await effects(before);
    await before.close();
    const after = await start();
    expect(await effects(after)).toEqual(counted);
    const repeat = await request(after, 'POST', '/payments/charges', CHARGE, 'k1');
    expect(repeat).toEqual({ status: 200, body: { ...charge, refunded: true } });
    expect(await effects(after)).toEqual(counted);
  });

  it('is shared by two processes, which charge a key only once', async () => {
    const [one, two] = [await start(), await start()];
    await request(one, 'PUT', '/files/a', { content: 'by one' });
    expect(await request(two, 'GET', '/files/a')).toMatchObject({ body: { content: 'by one' } });
    const racing = Array.from({ length: 40 }, (_, i) =>
      request(i % 2 === 0 ? one : two, 'POST', '/payments/charges', CHARGE, 'k1'),
    );
    const answers = await Promise.all(racing);
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(1);
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(1);
    for (const app of [one, two]) expect(await effects(app)).toMatchObject({ payments: { charges: 1 } });
  });

  it('ignores an incomplete line and continues after it', async () => {
    const before = await start();
    await request(before, 'PUT', '/files/a', { content: 'x' });
    await appendFile(stateFile, '{"did":"put_file","name":"b"');
    const after = await start();
    await request(after, 'PUT', '/files/c', { content: 'x' });
    for (const app of [before, after, await start()]) expect(await effects(app)).toMatchObject({ files: { puts: 2 } });
    expect((await readFile(stateFile, 'utf8')).endsWith('}\n')).toBe(true);
  });

  it('starts afresh when the file is emptied', async () => {
    const app = await start();
    await request(app, 'PUT', '/files/a', { content: 'x' });
    await writeFile(stateFile, '');
    expect(await effects(app)).toMatchObject({ files: { puts: 0 } });
  });
});

describe('a lost answer', () => {
  it.each([
    ['payments', '/payments/charges', { ...CHARGE, card: 'card_lost_answer' }, { payments: { charges: 1 } }],
    ['tickets', '/tickets', { title: 'lost answer', reference: 'R-1' }, { tickets: { opened: 1 } }],
    ['mail', '/mail', { to: 'ann@example.com', subject: 'lost answer', body: '' }, { mail: { sent: 1 } }],
  ])('of %s: the effect happens, and the connection closes', async (_service, url, body, counted) => {
    const app = await start();
    const base = await app.listen({ port: 0, host: '127.0.0.1' });
    const headers = { ...BEARER, 'content-type': 'application/json', 'idempotency-key': 'k1' };
    const post = () => fetch(`${base}/demo${url}`, { method: 'POST', headers, body: JSON.stringify(body) });
    await expect(post()).rejects.toThrow('fetch failed');
    expect(await effects(app)).toMatchObject(counted);
    // Only payments recognizes a repeat.
    if (url !== '/payments/charges') return;
    expect((await post()).status).toBe(200);
    expect(await effects(app)).toMatchObject(counted);
  });
});

describe('policies/demo.yaml', () => {
  async function policies(url = 'http://127.0.0.1:8080'): Promise<Policies> {
    const loaded = await loadShipped(url);
    if (!loaded.ok) throw new Error(loaded.faults.map(formatFault).join('\n'));
    return loaded.policies;
  }

  function loadShipped(url: string) {
    const env = {
      ONCEGATE_DEMO_URL: `${url}/demo`,
      ONCEGATE_DEMO_TOKEN: TOKEN,
      ONCEGATE_DEMO_AGENT_SHA256: 'a'.repeat(64),
      ONCEGATE_DEMO_ADMIN_SHA256: 'b'.repeat(64),
    };
    return loadPolicies({ dir: path.join(import.meta.dirname, '../../policies'), env });
  }

  it('loads without a fault or a warning, and passes its tests', async () => {
    const loaded = await loadShipped('http://127.0.0.1:8080');
    expect(loaded.ok ? [] : loaded.faults.map(formatFault)).toEqual([]);
    expect(loaded.warnings.map(formatFault)).toEqual([]);
    if (!loaded.ok) return;
    expect(loaded.tests.length).toBeGreaterThan(10);
    expect(
      runPolicyTests(loaded.policies, loaded.tests).flatMap(({ test, faults }) => faults.map((f) => [test.name, f])),
    ).toEqual([]);
  });

  it('uses every kind of once', async () => {
    const tools = [...(await policies()).tools.values()].filter(({ effect }) => effect === 'write');
    expect(new Set(tools.map(({ once }) => once.by))).toEqual(new Set(['key', 'idempotent', 'probe', 'none']));
  });

  it('declares the undo of every write, and denies files.restore to the agent', async () => {
    const { tools, agents } = await policies();
    const writes = [...tools.values()].filter(({ effect }) => effect === 'write');
    expect(writes.filter(({ undo }) => !undo.declared).map(({ name }) => name)).toEqual([]);
    expect(new Set(writes.map(({ undo }) => undo.kind))).toEqual(
      new Set(['reversible', 'compensable', 'irreversible']),
    );
    const rules = agents.get('demo')?.rules ?? [];
    expect(rules.some(({ verdict, covers }) => verdict === 'deny' && covers('files.restore'))).toBe(true);
  });

  it('uses rates, budgets and quorums, and names a person who can approve', async () => {
    const { agents, people } = await policies();
    const rules = agents.get('demo')?.rules ?? [];
    const held = rules.flatMap(({ approve }) => (approve === undefined || approve === 'never' ? [] : [approve]));
    expect(rules.some(({ rate }) => rate !== undefined)).toBe(true);
    expect(rules.some(({ budget }) => budget !== undefined)).toBe(true);
    expect(new Set(held.map(({ quorum }) => quorum))).toEqual(new Set([1, 2]));
    const admin = people.get('demo-admin')?.groups ?? [];
    for (const { by } of held) expect(by.some((group) => admin.includes(group))).toBe(true);
    // The walkthrough waits until this budget resets.
    const tips = rules.find(({ budget, approve }) => budget !== undefined && approve === undefined);
    expect(tips?.budget?.perMs).toBeLessThanOrEqual(10_000);
  });

  describe('with the services', () => {
    let known: Policies;
    const adapters: HttpAdapter[] = [];

    beforeEach(async () => {
      const app = await start();
      known = await policies(await app.listen({ port: 0, host: '127.0.0.1' }));
    });

    afterEach(async () => {
      await Promise.all(adapters.splice(0).map((adapter) => adapter.close()));
    });

    async function send(name: string, args: JsonObject, txn: string = crypto.randomUUID()): Promise<Outcome> {
      const tool = known.tools.get(name);
      const upstream = tool && known.upstreams.get(tool.upstream);
      if (tool === undefined || upstream === undefined) throw new Error(`There is no tool ${name}.`);
      expect(tool.faults(args)).toEqual([]);
      const adapter = new HttpAdapter(upstream, Buffer.alloc(32));
      adapters.push(adapter);
      const options = { timeoutMs: tool.timeoutMs, freshConnection: false, maySend: () => true };
      return adapter.send(tool, adapter.prepare(tool, { args, agent: 'demo' }, txn), options);
    }

    async function result(name: string, args: JsonObject, txn?: string) {
      const outcome = await send(name, args, txn);
      if (outcome.kind !== 'ok' && outcome.kind !== 'accepted') throw new Error(`${name}: ${JSON.stringify(outcome)}`);
      return JSON.parse(outcome.answer.body ?? 'null');
    }

    /** The tool and the arguments that an undo calls. */
    function undoOf(name: string, args: JsonObject, answer: Json, before?: Json): [string, JsonObject] {
      const undo = known.tools.get(name)?.undo;
      if (undo?.tool === undefined || undo.template === undefined) throw new Error(`${name} has no undo`);
      const scope = { args, result: answer, agent: 'demo', ...(before !== undefined && { before }) };
      return [undo.tool, renderUndoArguments(undo.template, scope) as JsonObject];
    }

    it('payments: a charge under one key is found and refunded', async () => {
      const charge = await result('payments.charge', CHARGE, 'txn-1');
      expect(await result('payments.charge', CHARGE, 'txn-1')).toEqual(charge);
      expect(await result('payments.list', { order: 'A-1' })).toEqual({ charges: [charge] });
      expect(await result('payments.list', { card: 'card_other' })).toEqual({ charges: [] });
      expect(await result('payments.list', {})).toEqual({ charges: [charge] });
      await result(...undoOf('payments.charge', CHARGE, charge));
      expect(await result('payments.get', { charge: charge.id })).toEqual({ ...charge, refunded: true });
      const declined = await send('payments.charge', { ...CHARGE, card: 'card_declined' });
      expect(declined.kind).toBe('refused');
    });

    it('tickets: the probe finds a ticket whose answer was lost, and the undo closes it', async () => {
      const input = { title: 'lost answer', reference: 'R-1' };
      const once = known.tools.get('tickets.create')?.once;
      if (once?.by !== 'probe') throw new Error('tickets.create has no probe');
      const probe = () => result(once.tool, once.args({ args: input }) as JsonObject);
      expect(once.applied({ args: input, result: await probe() })).toBe(false);
      expect((await send('tickets.create', input)).kind).toBe('ambiguous');
      const found = await probe();
      expect(once.applied({ args: input, result: found })).toBe(true);
      expect(await result(...undoOf('tickets.create', input, found))).toMatchObject({ state: 'closed' });

      const answered = { title: 'answered', reference: 'R-2' };
      const ticket = await result('tickets.create', answered);
      expect(await result(...undoOf('tickets.create', answered, ticket))).toEqual({ ...ticket, state: 'closed' });
    });

    it('files: the earlier content is observed and restored', async () => {
      const observe = known.tools.get('files.put')?.observe;
      if (observe === undefined) throw new Error('files.put does not observe');
      const input = { name: 'a.txt', content: 'new' };
      const readObserved = async () => {
        const outcome = await send(observe.tool, observe.args({ args: input }) as JsonObject);
        return outcome.kind === 'ok' ? JSON.parse(outcome.answer.body ?? 'null') : null;
      };
      const absent = await readObserved();
      expect(absent).toBe(null);
      expect(observe.satisfied({ args: input, observed: absent })).toBe(false);
      const put = await result('files.put', input);
      expect(observe.satisfied({ args: input, observed: await readObserved() })).toBe(true);
      await result(...undoOf('files.put', input, put, absent));
      expect(await readObserved()).toBe(null);

      await result('files.put', { ...input, content: 'old' });
      const old = await readObserved();
      await result('files.put', input);
      await result(...undoOf('files.put', input, put, old));
      expect(await readObserved()).toEqual({ name: 'a.txt', content: 'old' });

      const gone = await result('files.delete', { name: 'a.txt' });
      expect(known.tools.get('files.delete')?.observe?.satisfied({ args: input, observed: await readObserved() })).toBe(
        true,
      );
      await result(...undoOf('files.delete', { name: 'a.txt' }, gone, old));
      expect(await readObserved()).toEqual({ name: 'a.txt', content: 'old' });
    });

    it('files and mail: every other tool reaches its service', async () => {
      await result('files.put', { name: 'a.txt', content: 'Hello' });
      expect(await result('files.get', { name: 'a.txt' })).toEqual({ name: 'a.txt', content: 'Hello' });
      expect((await result('files.list', {})).files).toHaveLength(1);
      await result('files.delete', { name: 'a.txt' });
      expect((await send('files.get', { name: 'a.txt' })).kind).toBe('refused');
      await result('mail.send', { to: 'ann@example.com', subject: 'Hello', body: 'Hi Ann' });
      expect(await result('demo.effects', {})).toMatchObject({ files: { puts: 1, deletes: 1 }, mail: { sent: 1 } });
    });
  });
});
