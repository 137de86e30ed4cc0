import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { OncegateClient, type OncegateOptions } from '../../clients/src/client.ts';
import { aiSdkTools } from '../../clients/src/frameworks.ts';
import { callKey } from '../../clients/src/key.ts';
import { explainOutcome, OncegateError } from '../../clients/src/outcome.ts';

type Reply = (request: IncomingMessage, response: ServerResponse) => void;

const json =
  (status: number, body: object, headers: Record<string, string> = {}): Reply =>
  (_request, response) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));
  };
const problem = (status: number, code: string, retry: string, headers = {}) =>
  json(status, { code, retry, status, title: 'Title', detail: 'Detail.', txn: 'txn-1' }, headers);
const done = json(200, { txn: 'txn-1', state: 'succeeded', replayed: false, result: { id: 'ch_1' } });
const dropConnection: Reply = (request) => void request.socket.destroy();
const cutOff: Reply = (_request, response) => {
  response.writeHead(200, { 'content-type': 'application/json' }).end('{"txn":');
};

/** Starts a server that sends the replies in order, repeats the last one, and records the requests. */
async function startScriptedGateway(replies: readonly Reply[], options: Partial<OncegateOptions> = {}) {
  const keys: unknown[] = [];
  const bodies: string[] = [];
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk) => {
      body += chunk;
    });
    request.on('end', () => {
      if (request.url === '/v1/tools') {
        const tool = { name: 'billing.charge', description: 'Charges.', input: { type: 'object' }, effect: 'write' };
        json(200, { tools: [tool] })(request, response);
        return;
      }
      keys.push(request.headers['idempotency-key']);
      bodies.push(body);
      (replies[keys.length - 1] ?? replies.at(-1))?.(request, response);
    });
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  return { client: new OncegateClient({ url, key: 'k', ...options }), keys, bodies };
}

describe('a call', () => {
  test.each([
    ['the connection is lost', [dropConnection, dropConnection, done]],
    ['the answer is cut off', [cutOff, done]],
    ['it is still in progress', [problem(409, 'in_progress', 'same_key'), done]],
    ['the ledger fails for a moment', [json(504, { code: 'in_doubt', state: 'sending', retry: 'same_key' }), done]],
    ['the gateway is not available', [problem(503, 'unavailable', 'after_delay'), done]],
    ['a proxy before the gateway fails', [json(502, {}), done]],
    ['it did not finish in time', [json(202, { txn: 'txn-1', state: 'sending' }, { 'retry-after': '0' }), done]],
  ])('is retried with the same key and bytes when %s', async (_name, replies) => {
    const { client, keys, bodies } = await startScriptedGateway(replies);
    expect(await client.call('billing.charge', { amount: 5 }, { key: 'key-1' })).toEqual({
      kind: 'done',
      txn: 'txn-1',
      result: { id: 'ch_1' },
      replayed: false,
    });
    expect(keys).toEqual(replies.map(() => 'key-1'));
    expect(new Set(bodies)).toEqual(new Set(['{"amount":5}']));
  });

  test('makes a limited number of requests', async () => {
    const { client, keys } = await startScriptedGateway([dropConnection], { attempts: 3 });
    expect(await client.call('t', {}, { key: 'key-1' })).toEqual({ kind: 'unknown', key: 'key-1' });
    expect(keys).toEqual(['key-1', 'key-1', 'key-1']);
  });

  test('waits as Retry-After says, and gives up if that is longer than its patience', async () => {
    const { client, keys } = await startScriptedGateway([
      problem(503, 'frozen', 'after_delay', { 'retry-after': '3600' }),
    ]);
    expect(await client.call('t', {}, { key: 'key-1' })).toMatchObject({
      kind: 'refused',
      problem: { code: 'frozen' },
    });
    expect(keys).toHaveLength(1);
  });

  test.each([
    ['denied', 403, 'never'],
    ['tool_failed', 502, 'new_key'],
    ['key_reused', 422, 'new_key'],
  ])('is not retried when it is %s', async (code, status, retry) => {
    const { client, keys } = await startScriptedGateway([problem(status, code, retry)]);
    expect(await client.call('t', {}, { key: 'key-1' })).toMatchObject({ kind: 'refused', problem: { code } });
    expect(keys).toHaveLength(1);
  });

  test('in doubt is reported at once as unknown', async () => {
    const doubt = json(504, { code: 'in_doubt', state: 'in_doubt', retry: 'same_key', txn: 'txn-1' });
    const { client, keys } = await startScriptedGateway([doubt]);
    const outcome = await client.call('t', {}, { key: 'key-1' });
    expect(outcome).toMatchObject({ kind: 'unknown', txn: 'txn-1' });
    expect(keys).toHaveLength(1);
  });

  test('stays pending when the connection is lost afterwards', async () => {
    const held = json(202, { txn: 'txn-1', state: 'held' }, { 'retry-after': '0' });
    const { client } = await startScriptedGateway([held, dropConnection], { attempts: 2 });
    expect(await client.call('t', {}, { key: 'key-1' })).toEqual({ kind: 'pending', txn: 'txn-1', state: 'held' });
  });

  test('with a delay is reported at once, with the time of its send', async () => {
    const hold = { kind: 'delay', until: '2026-01-31T12:05:00.000Z' };
    const { client, keys } = await startScriptedGateway([
      json(202, { txn: 'txn-1', state: 'held', hold }, { 'retry-after': '300' }),
    ]);
    const outcome = await client.call('t', {}, { key: 'key-1' });
    expect(outcome).toEqual({ kind: 'pending', txn: 'txn-1', state: 'held', leavesAt: hold.until });
    expect(explainOutcome(outcome as never)).toMatch(/runs by itself at 2026.*Do not call the tool again/);
    expect(keys).toHaveLength(1);
  });

  test.each([
    ['a flood guard', problem(429, 'rate_limited', 'after_delay'), 'unknown'],
    ['a freeze', problem(503, 'frozen', 'after_delay'), 'unknown'],
    ['a denial', problem(403, 'denied', 'never'), 'unknown'],
    ['the failure of that very call', problem(502, 'tool_failed', 'new_key'), 'refused'],
  ])('whose first request was lost: what %s proves', async (_name, second, kind) => {
    const { client } = await startScriptedGateway([dropConnection, second], { attempts: 2 });
    expect(await client.call('t', {}, { key: 'key-1' })).toMatchObject({ kind });
  });

  test('is unknown when a refused request is followed by a lost one', async () => {
    const { client } = await startScriptedGateway([problem(503, 'unavailable', 'after_delay'), dropConnection], {
      attempts: 2,
    });
    expect(await client.call('t', {}, { key: 'key-1' })).toEqual({ kind: 'unknown', key: 'key-1' });
  });

  test('ends when its signal aborts', async () => {
    const { client } = await startScriptedGateway([dropConnection], { attempts: 100 });
    const signal = AbortSignal.abort(new Error('enough'));
    await expect(client.call('t', {}, { key: 'key-1', signal })).rejects.toThrow('enough');
  });
});

describe('tools', () => {
  const options = { jsonSchema: (schema: unknown) => schema };
  const execute = async (replies: Reply[], more: object = {}) => {
    const { client, keys } = await startScriptedGateway(replies, { attempts: 1 });
    const tools = (await aiSdkTools(client, { ...options, ...more })) as Record<
      string,
      { execute: (...args: unknown[]) => Promise<unknown> }
    >;
    expect(Object.keys(tools)).toEqual(['billing__charge']);
    const run = (toolCallId: string) => tools['billing__charge']?.execute({}, { toolCallId });
    return { run, keys };
  };

  test('describe a failure to the model, or throw', async () => {
    const held = json(202, { txn: 'txn-1', state: 'held' });
    const { run } = await execute([held]);
    expect(await run('toolu_abcdefghijklmnopqrst')).toEqual({
      error: 'pending',
      message: expect.stringMatching(/^Held: a person has to approve/),
    });
    const { run: throwing } = await execute([held], { errors: 'throw' });
    await expect(throwing('toolu_abcdefghijklmnopqrst')).rejects.toThrow(OncegateError);
  });

  test('use the call id as key, together with the run if ids are counters', async () => {
    const { run, keys } = await execute([done]);
    await run('toolu_abcdefghijklmnopqrst');
    await run('call_0');
    expect(keys[0]).toBe('toolu_abcdefghijklmnopqrst');
    expect(keys[1]).toMatch(/^[0-9a-f-]{36}\/call_0$/);
    const named = await execute([done], { run: 'thread-7' });
    await named.run('call_0');
    expect(named.keys).toEqual(['thread-7/call_0']);
  });
});

test('keys are valid for the gateway', async () => {
  const generated = 'generated';
  expect(await callKey('functions.charge:0', { generated })).toBe('generated/functions.charge:0');
  expect(await callKey('chatcmpl-tool-0a1b2c3d4e5f60718293a4b5c6d7e8f9', { generated })).toMatch(/^chatcmpl-tool-/);
  expect(await callKey('é'.repeat(20), { generated })).toMatch(/^[0-9a-f]{64}$/);
  expect(await callKey('x'.repeat(300), { generated })).toMatch(/^[0-9a-f]{64}$/);
});

test('the description of a doubt tells the model not to call again', () => {
  expect(explainOutcome({ kind: 'unknown', key: 'k' })).toMatch(
    /may or may not have happened.*Do not call the tool again/,
  );
  expect(explainOutcome({ kind: 'pending', txn: 't', state: 'sending' })).toMatch(/Do not call the tool again/);
});
