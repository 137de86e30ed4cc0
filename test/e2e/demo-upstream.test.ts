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

/** A process with the services in it; a second one on the same file is another replica, or the same one restarted. */
async function start(): Promise<FastifyInstance> {
  const app = Fastify({ forceCloseConnections: true });
  running.push(app);
  await app.register(registerDemoServices, { prefix: '/demo', stateFile, token: TOKEN });
  await app.ready();
  return app;
}

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

async function ask(app: FastifyInstance, method: Method, url: string, body?: object, key?: string) {
  const headers = { ...BEARER, ...(key !== undefined && { 'idempotency-key': key }) };
  const answer = await app.inject({ method, url: `/demo${url}`, headers, ...(body && { payload: body }) });
  return { status: answer.statusCode, body: answer.json() };
}

async function effects(app: FastifyInstance) {
  return (await ask(app, 'GET', '/effects')).body;
}

describe('the door', () => {
  it.each([undefined, 'Bearer wrong', TOKEN])('stays shut for authorization %s', async (authorization) => {
    const app = await start();
    for (const url of ['/payments/charges', '/tickets', '/files', '/effects']) {
      const answer = await app.inject({ url: `/demo${url}`, headers: { ...(authorization && { authorization }) } });
      expect(answer.statusCode, url).toBe(401);
    }
  });

  it('answers what it does not know in its own words', async () => {
    const app = await start();
    expect(await ask(app, 'GET', '/nothing')).toMatchObject({ status: 404, body: { error: { code: 'not_found' } } });
    expect(await ask(app, 'POST', '/tickets', { title: 7 })).toMatchObject({ status: 422 });
    const headers = { ...BEARER, 'content-type': 'application/json' };
    const broken = await app.inject({ method: 'POST', url: '/demo/mail', headers, payload: '{' });
    expect(broken.statusCode).toBe(400);
  });

  it('reads bodies its own way, whatever the app around it does', async () => {
    const app = Fastify();
    running.push(app);
    app.removeAllContentTypeParsers();
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body));
    app.setNotFoundHandler((_request, reply) => reply.code(418).send());
    await app.register(registerDemoServices, { prefix: '/demo', stateFile, token: TOKEN });
    expect(await ask(app, 'PUT', '/files/a', { content: 'x' })).toMatchObject({ status: 200, body: { size: 1 } });
    expect((await app.inject('/elsewhere')).statusCode).toBe(418);
  });
});

describe('payments', () => {
  it('charges once for a key and answers the repeat with the same charge', async () => {
    const app = await start();
    const first = await ask(app, 'POST', '/payments/charges', CHARGE, 'k1');
    const again = await ask(app, 'POST', '/payments/charges', CHARGE, 'k1');
    expect(first).toMatchObject({ status: 201, body: { amount: 1250, order: 'A-1', last4: '4242', refunded: false } });
    expect(first.body.id).toMatch(/^ch_/);
    expect(first.body).not.toHaveProperty('card');
    expect(again).toEqual({ status: 200, body: first.body });
    expect(await effects(app)).toMatchObject({ payments: { charges: 1 } });
  });

  it('takes no charge without a key, none under a used one, none from a declined card', async () => {
    const app = await start();
    await ask(app, 'POST', '/payments/charges', CHARGE, 'k1');
    const other = { ...CHARGE, amount: 1 };
    expect(await ask(app, 'POST', '/payments/charges', CHARGE)).toMatchObject({ status: 400 });
    expect(await ask(app, 'POST', '/payments/charges', other, 'k1')).toMatchObject({ status: 422 });
    const declined = { ...CHARGE, card: 'card_declined' };
    // Not the card's token: that is redacted wherever it stands, and nobody would learn why.
    const refusal = { status: 422, body: { error: { code: 'declined', message: 'The card was declined.' } } };
    expect(await ask(app, 'POST', '/payments/charges', declined, 'k2')).toEqual(refusal);
    expect(await effects(app)).toMatchObject({ payments: { charges: 1 } });
  });

  it('refunds a charge once', async () => {
    const app = await start();
    const { body: charge } = await ask(app, 'POST', '/payments/charges', CHARGE, 'k1');
    const refunds = `/payments/charges/${charge.id}/refunds`;
    const first = await ask(app, 'POST', refunds, {}, 'r1');
    expect(first).toMatchObject({ status: 201, body: { charge: charge.id, amount: 1250 } });
    expect(await ask(app, 'POST', refunds, {}, 'r1')).toEqual({ status: 200, body: first.body });
    expect(await ask(app, 'POST', refunds, {}, 'r2')).toMatchObject({ status: 422 });
    expect(await ask(app, 'POST', '/payments/charges/ch_0/refunds', {}, 'r3')).toMatchObject({ status: 404 });
    expect(await ask(app, 'GET', `/payments/charges/${charge.id}`)).toMatchObject({ body: { refunded: true } });
    expect(await effects(app)).toMatchObject({ payments: { charges: 1, refunds: 1 } });
  });

  it('finds charges by card and order', async () => {
    const app = await start();
    await ask(app, 'POST', '/payments/charges', CHARGE, 'k1');
    await ask(app, 'POST', '/payments/charges', { amount: 1, currency: 'usd', card: 'card_b' }, 'k2');
    const count = async (query: string) =>
      (await ask(app, 'GET', `/payments/charges${query}`)).body.charges.length as number;
    expect(await count('')).toBe(2);
    expect(await count('?card=card_b')).toBe(1);
    expect(await count('?order=A-1')).toBe(1);
    expect(await count('?card=card_b&order=A-1')).toBe(0);
    expect(await ask(app, 'GET', '/payments/charges/ch_0')).toMatchObject({ status: 404 });
  });
});

describe('tickets, files and mail', () => {
  it('opens a ticket each time it is asked to, finds it by its reference and closes it once', async () => {
    const app = await start();
    const wish = { title: 'The printer is on fire', reference: 'R-1' };
    const { body: ticket } = await ask(app, 'POST', '/tickets', wish);
    await ask(app, 'POST', '/tickets', wish);
    await ask(app, 'POST', '/tickets', { ...wish, reference: 'R-2' });
    expect((await ask(app, 'GET', '/tickets?reference=R-1')).body.tickets).toHaveLength(2);
    const closed = await ask(app, 'POST', `/tickets/${ticket.id}/close`);
    expect(closed).toEqual({ status: 200, body: { ...ticket, state: 'closed' } });
    expect(await ask(app, 'POST', `/tickets/${ticket.id}/close`)).toEqual(closed);
    expect(await ask(app, 'POST', '/tickets/tk_0/close')).toMatchObject({ status: 404 });
    expect(await effects(app)).toMatchObject({ tickets: { opened: 3, closed: 1 } });
  });

  it('puts, lists, reads and deletes files', async () => {
    const app = await start();
    await ask(app, 'PUT', '/files/a.txt', { content: 'old' });
    await ask(app, 'PUT', '/files/a.txt', { content: 'newer' });
    expect(await ask(app, 'GET', '/files/a.txt')).toEqual({ status: 200, body: { name: 'a.txt', content: 'newer' } });
    expect((await ask(app, 'GET', '/files')).body).toEqual({ files: [{ name: 'a.txt', size: 5 }] });
    const deleted = await ask(app, 'DELETE', '/files/a.txt');
    expect(deleted.status).toBe(200);
    expect(await ask(app, 'DELETE', '/files/a.txt')).toEqual(deleted);
    expect(await ask(app, 'GET', '/files/a.txt')).toMatchObject({ status: 404 });
    expect(await effects(app)).toMatchObject({ files: { puts: 2, deletes: 1 } });
  });

  it('restores a file to what it said, or to not being there, as often as it is asked to', async () => {
    const app = await start();
    await ask(app, 'PUT', '/files/a.txt', { content: 'new' });
    for (const _ of [1, 2])
      expect(await ask(app, 'POST', '/files/a.txt/restore', { content: 'old' })).toMatchObject({ status: 200 });
    expect(await ask(app, 'GET', '/files/a.txt')).toMatchObject({ body: { content: 'old' } });
    for (const _ of [1, 2])
      expect(await ask(app, 'POST', '/files/a.txt/restore', { content: null })).toMatchObject({ status: 200 });
    expect(await ask(app, 'GET', '/files/a.txt')).toMatchObject({ status: 404 });
    expect(await ask(app, 'POST', '/files/a.txt/restore', {})).toMatchObject({ status: 422 });
    expect(await effects(app)).toMatchObject({ files: { puts: 1, deletes: 0, restores: 4 } });
  });

  it('sends every mail it is given', async () => {
    const app = await start();
    const mail = { to: 'ann@example.com', subject: 'Hello', body: 'Hi Ann' };
    expect(await ask(app, 'POST', '/mail', mail)).toMatchObject({ status: 202 });
    await ask(app, 'POST', '/mail', mail);
    expect(await effects(app)).toMatchObject({ mail: { sent: 2 } });
  });
});

describe('the journal', () => {
  it('is the same world after a restart', async () => {
    const before = await start();
    const { body: charge } = await ask(before, 'POST', '/payments/charges', CHARGE, 'k1');
    await ask(before, 'POST', `/payments/charges/${charge.id}/refunds`, {}, 'r1');
    await ask(before, 'POST', '/tickets', { title: 't', reference: 'R-1' });
    await ask(before, 'PUT', '/files/a', { content: 'x' });
    const counted = await effects(before);
    await before.close();
    const after = await start();
    expect(await effects(after)).toEqual(counted);
    const repeat = await ask(after, 'POST', '/payments/charges', CHARGE, 'k1');
    expect(repeat).toEqual({ status: 200, body: { ...charge, refunded: true } });
    expect(await effects(after)).toEqual(counted);
  });

  it('shows each process what the other did, and lets one charge a key between them', async () => {
    const [one, two] = [await start(), await start()];
    await ask(one, 'PUT', '/files/a', { content: 'by one' });
    expect(await ask(two, 'GET', '/files/a')).toMatchObject({ body: { content: 'by one' } });
    const racing = Array.from({ length: 40 }, (_, i) =>
      ask(i % 2 === 0 ? one : two, 'POST', '/payments/charges', CHARGE, 'k1'),
    );
    const answers = await Promise.all(racing);
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(1);
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(1);
    for (const app of [one, two]) expect(await effects(app)).toMatchObject({ payments: { charges: 1 } });
  });

  it('takes half a line for none and goes on after it', async () => {
    const before = await start();
    await ask(before, 'PUT', '/files/a', { content: 'x' });
    await appendFile(stateFile, '{"did":"put_file","name":"b"');
    const after = await start();
    await ask(after, 'PUT', '/files/c', { content: 'x' });
    for (const app of [before, after, await start()]) expect(await effects(app)).toMatchObject({ files: { puts: 2 } });
    expect((await readFile(stateFile, 'utf8')).endsWith('}\n')).toBe(true);
  });

  it('starts afresh when somebody empties the file', async () => {
    const app = await start();
    await ask(app, 'PUT', '/files/a', { content: 'x' });
    await writeFile(stateFile, '');
    expect(await effects(app)).toMatchObject({ files: { puts: 0 } });
  });
});

describe('lost answers', () => {
  it.each([
    ['payments', '/payments/charges', { ...CHARGE, card: 'card_lost_answer' }, { payments: { charges: 1 } }],
    ['tickets', '/tickets', { title: 'lost answer', reference: 'R-1' }, { tickets: { opened: 1 } }],
    ['mail', '/mail', { to: 'ann@example.com', subject: 'lost answer', body: '' }, { mail: { sent: 1 } }],
  ])('%s does it and then hangs up', async (_service, url, body, counted) => {
    const app = await start();
    const base = await app.listen({ port: 0, host: '127.0.0.1' });
    const headers = { ...BEARER, 'content-type': 'application/json', 'idempotency-key': 'k1' };
    const post = () => fetch(`${base}/demo${url}`, { method: 'POST', headers, body: JSON.stringify(body) });
    await expect(post()).rejects.toThrow('fetch failed');
    expect(await effects(app)).toMatchObject(counted);
    // Only payments knows a repeat when it sees one.
    if (url !== '/payments/charges') return;
    expect((await post()).status).toBe(200);
    expect(await effects(app)).toMatchObject(counted);
  });
});

describe('policies/demo.yaml', () => {
  async function policies(url = 'http://127.0.0.1:8080'): Promise<Policies> {
    const loaded = await shipped(url);
    if (!loaded.ok) throw new Error(loaded.faults.map(formatFault).join('\n'));
    return loaded.policies;
  }

  function shipped(url: string) {
    const env = {
      ONCEGATE_DEMO_URL: `${url}/demo`,
      ONCEGATE_DEMO_TOKEN: TOKEN,
      ONCEGATE_DEMO_AGENT_SHA256: 'a'.repeat(64),
      ONCEGATE_DEMO_ADMIN_SHA256: 'b'.repeat(64),
    };
    return loadPolicies({ dir: path.join(import.meta.dirname, '../../policies'), env });
  }

  it('loads without a fault or a warning, and passes its tests', async () => {
    const loaded = await shipped('http://127.0.0.1:8080');
    expect(loaded.ok ? [] : loaded.faults.map(formatFault)).toEqual([]);
    expect(loaded.warnings.map(formatFault)).toEqual([]);
    if (!loaded.ok) return;
    expect(loaded.tests.length).toBeGreaterThan(10);
    expect(
      runPolicyTests(loaded.policies, loaded.tests).flatMap(({ test, faults }) => faults.map((f) => [test.name, f])),
    ).toEqual([]);
  });

  it('shows every kind of once', async () => {
    const tools = [...(await policies()).tools.values()].filter(({ effect }) => effect === 'write');
    expect(new Set(tools.map(({ once }) => once.by))).toEqual(new Set(['key', 'idempotent', 'probe', 'none']));
  });

  it('says of every write how it is undone, and gives no agent a way back by its own hand', async () => {
    const { tools, agents } = await policies();
    const writes = [...tools.values()].filter(({ effect }) => effect === 'write');
    expect(writes.filter(({ undo }) => !undo.declared).map(({ name }) => name)).toEqual([]);
    expect(new Set(writes.map(({ undo }) => undo.kind))).toEqual(
      new Set(['reversible', 'compensable', 'irreversible']),
    );
    const rules = agents.get('demo')?.rules ?? [];
    expect(rules.some(({ verdict, covers }) => verdict === 'deny' && covers('files.restore'))).toBe(true);
  });

  it('shows every limit of a rule, and a person who can approve what one person may', async () => {
    const { agents, people } = await policies();
    const rules = agents.get('demo')?.rules ?? [];
    const held = rules.flatMap(({ approve }) => (approve === undefined || approve === 'never' ? [] : [approve]));
    expect(rules.some(({ rate }) => rate !== undefined)).toBe(true);
    expect(rules.some(({ budget }) => budget !== undefined)).toBe(true);
    expect(new Set(held.map(({ quorum }) => quorum))).toEqual(new Set([1, 2]));
    const admin = people.get('demo-admin')?.groups ?? [];
    for (const { by } of held) expect(by.some((group) => admin.includes(group))).toBe(true);
    // The walkthrough waits for this one to end.
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
      if (tool === undefined || upstream === undefined) throw new Error(`no tool ${name}`);
      expect(tool.faults(args)).toEqual([]);
      const adapter = new HttpAdapter(upstream, Buffer.alloc(32));
      adapters.push(adapter);
      const options = { timeoutMs: tool.timeoutMs, freshConnection: false, maySend: () => true };
      return adapter.send(tool, adapter.prepare(tool, { args, agent: 'demo' }, txn), options);
    }

    async function result(name: string, args: JsonObject, txn?: string) {
      const outcome = await send(name, args, txn);
      if (outcome.kind !== 'ok') throw new Error(`${name}: ${JSON.stringify(outcome)}`);
      return JSON.parse(outcome.answer.body ?? 'null');
    }

    /** What an undo would call. */
    function undoOf(name: string, args: JsonObject, answer: Json, before?: Json): [string, JsonObject] {
      const undo = known.tools.get(name)?.undo;
      if (undo?.tool === undefined || undo.template === undefined) throw new Error(`${name} has no undo`);
      const scope = { args, result: answer, agent: 'demo', ...(before !== undefined && { before }) };
      return [undo.tool, renderUndoArguments(undo.template, scope) as JsonObject];
    }

    it('payments: charged under one key, found, given back', async () => {
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

    it('tickets: an answer is lost, the probe finds the ticket, the undo closes it', async () => {
      const wish = { title: 'lost answer', reference: 'R-1' };
      const once = known.tools.get('tickets.create')?.once;
      if (once?.by !== 'probe') throw new Error('tickets.create has no probe');
      const probe = () => result(once.tool, once.args({ args: wish }) as JsonObject);
      expect(once.applied({ args: wish, result: await probe() })).toBe(false);
      expect((await send('tickets.create', wish)).kind).toBe('ambiguous');
      const found = await probe();
      expect(once.applied({ args: wish, result: found })).toBe(true);
      expect(await result(...undoOf('tickets.create', wish, found))).toMatchObject({ state: 'closed' });

      const heard = { title: 'heard', reference: 'R-2' };
      const ticket = await result('tickets.create', heard);
      expect(await result(...undoOf('tickets.create', heard, ticket))).toEqual({ ...ticket, state: 'closed' });
    });

    it('files: what was there is seen, and put back', async () => {
      const observe = known.tools.get('files.put')?.observe;
      if (observe === undefined) throw new Error('files.put does not observe');
      const wish = { name: 'a.txt', content: 'new' };
      const look = async () => {
        const outcome = await send(observe.tool, observe.args({ args: wish }) as JsonObject);
        return outcome.kind === 'ok' ? JSON.parse(outcome.answer.body ?? 'null') : null;
      };
      const nothing = await look();
      expect(nothing).toBe(null);
      expect(observe.satisfied({ args: wish, observed: nothing })).toBe(false);
      const put = await result('files.put', wish);
      expect(observe.satisfied({ args: wish, observed: await look() })).toBe(true);
      await result(...undoOf('files.put', wish, put, nothing));
      expect(await look()).toBe(null);

      await result('files.put', { ...wish, content: 'old' });
      const old = await look();
      await result('files.put', wish);
      await result(...undoOf('files.put', wish, put, old));
      expect(await look()).toEqual({ name: 'a.txt', content: 'old' });

      const gone = await result('files.delete', { name: 'a.txt' });
      expect(known.tools.get('files.delete')?.observe?.satisfied({ args: wish, observed: await look() })).toBe(true);
      await result(...undoOf('files.delete', { name: 'a.txt' }, gone, old));
      expect(await look()).toEqual({ name: 'a.txt', content: 'old' });
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
