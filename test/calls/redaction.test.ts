import type { IncomingMessage, ServerResponse } from 'node:http';
import { describe, expect, it } from 'vitest';
import { postMcp } from '../mcp/clients.ts';
import { useMcpServer } from '../mcp/use-mcp-server.ts';
import { type Reply, testerYaml } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway } from '../support/use-gateway.ts';

/** Each test has its own secret value, which must not be found anywhere afterwards. */
const MCP_TOKEN = 'SECRETmcptoken55';

/** Echoes the request body. The path selects how: as a success, as a refusal, as bytes, in the content type, or by closing the socket. */
function echoRequest(request: IncomingMessage, response: ServerResponse): void {
  let body = '';
  request.setEncoding('utf8').on('data', (chunk: string) => {
    body += chunk;
  });
  request.on('end', () => {
    const mode = request.url?.split('/')[1];
    if (mode === 'lost') return void request.socket.destroy();
    if (mode === 'bytes') return void response.end(Buffer.concat([Buffer.from([0xff, 0xfe]), Buffer.from(body)]));
    const type = mode === 'typed' ? `text/plain; x="${JSON.parse(body).card}"` : 'application/json';
    const sent = JSON.stringify(JSON.parse(body).card ?? null);
    response
      .writeHead(mode === 'refuse' ? 422 : 200, { 'content-type': type })
      .end(`{"id":"r1","echo":${body},"card":${sent}}`);
  });
}

const policies = (url: string, mcp: string) => {
  let paths = 0;
  const path = (mode: string) => {
    paths += 1;
    return `${mode}/${paths}`;
  };
  const tool = (mode: string, more = '') =>
    `{ upstream: w, input: { type: object }, request: { method: POST, path: ${path(mode)} }, once: { by: idempotent }${more} }`;
  const undo = (by: string, args: string) =>
    `, redact: [args.card], undo: { kind: compensable, tool: ${by}, args: ${args} }`;
  const find = `tool: world.find, args: { id: "\${args.ref}" }`;
  const observe = `observe: { ${find}, satisfied: "false" }, retry: { attempts: 2, base: 10ms, max: 20ms, within: 5s }`;
  return `
upstreams:
  w: { adapter: http, url: "${url}", allowPrivate: true, timeout: 1s, breaker: { minimum: 1000 } }
  world:
    { adapter: mcp, url: "${mcp}", allowPrivate: true, import: "*", timeout: 3s, breaker: { minimum: 1000 }, headers: { authorization: "Bearer \${env.MCP_TOKEN}" } }
tools:
  w.charge: ${tool('/ok', undo('w.refund', `{ text: "for \${args.card}", card: "\${args.card}" }`))}
  w.derived: ${tool('/ok', undo('w.refund', `{ card: "\${args.card.upperAscii()}", order: "\${args.order}", why: undone }`))}
  w.failing: ${tool('/ok', undo('w.refundbad', `{ card: "\${args.card}" }`))}
  w.both: ${tool('/ok', undo('w.refundown', `{ card: "\${args.card}", note: "n-1" }`))}
  w.notified: ${tool('/ok', undo('world.mail', `{ id: "notified", text: "\${args.card}" }`))}
  w.number: ${tool('/ok', undo('w.refund', `{ pin: "\${int(args.card)}", order: "\${args.order}" }`))}
  w.whole: ${tool('/ok', undo('w.refund', `"\${args.card}"`))}
  w.refund: ${tool('/ok')}
  w.refundbad: ${tool('/refuse')}
  w.refundown: ${tool('/ok', ', redact: [args.note]')}
  w.held: ${tool('/ok', ', redact: [args.card]')}
  w.mail: { upstream: w, input: { type: object }, redact: [args.card, result.token], request: { method: POST, path: ${path('/lost')} }, once: { by: none } }
  w.bytes: ${tool('/bytes', ', redact: [args.card]')}
  w.typed: ${tool('/typed', ', redact: [args.card]')}
  w.probed:
    upstream: w
    input: { type: object }
    redact: [args.ref]
    request: { method: POST, path: ${path('/lost')} }
    once: { by: probe, settles: 10ms, probe: { ${find}, applied: "result.structuredContent.found" } }
    retry: { attempts: 1, base: 10ms, max: 1s, within: 2s }
  w.observed: ${tool('/ok', `, redact: [args.ref], ${observe}`)}
  w.seen: ${tool('/ok', `, ${observe}`)}
  world.find: { upstream: world, effect: read, input: { type: object } }
  world.mail: { upstream: world, input: { type: object }, once: { by: none } }
${testerYaml('[{ allow: w.held, approve: { quorum: 1 } }, { allow: "*", approve: never }]')}`;
};

/** Every answer that an agent or a person received. */
const answers: string[] = [];

const upstream = useHttpServer(echoRequest);
const mcp = useMcpServer();
const { database, gateway } = useGateway({
  upstream: 'none',
  env: { LOG_LEVEL: 'trace', MCP_TOKEN },
  policies: () => policies(upstream.url, mcp.url),
});

const record = (reply: Reply): Reply => {
  answers.push(JSON.stringify([reply.body, [...reply.headers]]));
  return reply;
};
const call = async (tool: string, args: object, headers: Record<string, string> = {}) =>
  record(
    await gateway.call(tool, args, { key: `${tool}-${answers.length}`, headers: { prefer: 'wait=5', ...headers } }),
  );

/** Lists where a value appears: in columns of the ledger, in answers, and in the output of the gateway. */
async function findTraces(value: string): Promise<string[]> {
  const tables = await database.query<{ name: string }>(
    `select tablename as name from pg_tables where schemaname = 'public'`,
  );
  const encoded = [value, Buffer.from(value).toString('hex'), Buffer.from(value).toString('base64').replace(/=+$/, '')];
  const isIn = (text: string) => encoded.some((encoding) => text.includes(encoding));
  const found: string[] = answers.filter(isIn).map((text) => `answered: ${text}`);
  for (const { name } of tables) {
    const rows = await database.query<{ row: Record<string, unknown> }>(`select row_to_json(t) as row from ${name} t`);
    for (const { row } of rows)
      for (const [column, held] of Object.entries(row))
        if (isIn(JSON.stringify(held) ?? '')) found.push(`${name}.${column}: ${JSON.stringify(held)}`);
  }
  if (isIn(gateway.output)) found.push(`logged: ${gateway.output}`);
  return found;
}

/** Undoes a call, and records the answers that its agent and an operator get about the undo. */
async function undoCall(txn: string): Promise<Reply['body']> {
  record(await gateway.admin('POST', `/admin/calls/${txn}/undo`, { reason: 'wrong' }));
  const { undo } = await gateway.waitForCall(txn, (now) => now.undo.state === 'done' || now.undo.state === 'failed');
  record(await gateway.get(`/v1/calls/${txn}`));
  record(await gateway.get(`/v1/calls/${undo.txn}`));
  record(await gateway.admin('GET', `/admin/calls/${txn}`));
  return record(await gateway.admin('GET', `/admin/calls/${undo.txn}`)).body;
}

describe('a value that a call redacts stays out of the record of its undo', () => {
  it.each([
    ['if the answer of the undo contains it', 'w.charge', 'SECRETundo-echo'],
    ['if the refusal of the undo contains it', 'w.failing', 'SECRETundo-refused'],
    ['if the undo redacts another value', 'w.both', 'SECRETundo-both'],
  ])('%s', async (_, tool, card) => {
    const { body } = await call(tool, { card });
    expect((await undoCall(body.txn)).undoes).toBe(body.txn);
    expect(await findTraces(card)).toEqual([]);
  });

  it('if the error message of the undo contains it', async () => {
    const card = 'SECRETundo-words';
    await mcp.plan({ match: { tool: 'mail' }, do: [{ isError: `no such card: ${card}` }], times: 5 });
    const { body } = await call('w.notified', { card });
    await undoCall(body.txn);
    await mcp.reset();
    expect(await findTraces(card)).toEqual([]);
  });

  it('and the agent does not see the body with which its compensation was refused', async () => {
    const { body } = await call('w.failing', { card: 'SECRETundo-hidden' });
    const { txn } = await undoCall(body.txn);
    const { problem } = (await gateway.get(`/v1/calls/${txn}`)).body;
    expect(problem).toEqual({ code: 'tool_failed', detail: expect.any(String) });
    expect((await gateway.admin('GET', `/admin/calls/${txn}`)).body.problem.upstream.status).toBe(422);
  });
});

describe('the error message of a read that serves a redacting call', () => {
  const planError = (value: string) =>
    mcp.plan({ match: { tool: 'find' }, do: [{ error: { code: -32603, message: `no such ${value}` } }], times: 10 });

  it('is left out of the problem if a probe fails', async () => {
    const ref = 'SECRETlook-probe';
    await planError(ref);
    const { body } = await call('w.probed', { ref });
    expect(body.code).toBe('in_doubt');
    await gateway.waitForCall(body.txn, ({ problem }) => /probe gave (?:no|a) clear answer/.test(problem.detail));
    record(await gateway.admin('GET', `/admin/calls/${body.txn}`));
    await mcp.reset();
    expect(await findTraces(ref)).toEqual([]);
  });

  it('is left out of the problem if an observe fails', async () => {
    const ref = 'SECRETlook-observe';
    await planError(ref);
    expect((await call('w.observed', { ref })).status).toBe(503);
    await mcp.reset();
    expect(await findTraces(ref)).toEqual([]);
  });

  it('is never in the audit log, because the log cannot forget it', async () => {
    const ref = 'STRANGERlook-observe';
    await planError(ref);
    expect((await call('w.seen', { ref })).body.detail).toContain(ref);
    await mcp.reset();
    expect((await findTraces(ref)).filter((trace) => trace.startsWith('audit'))).toEqual([]);
  });
});

it('a credential in a log message of an MCP server is scrubbed while a resource is read', async () => {
  const params = { level: 'warning', data: `my credential is ${MCP_TOKEN}` };
  const method = 'resources/read';
  await mcp.plan({ match: { method }, do: [{ say: { method: 'notifications/message', params } }], times: 2 });
  const uri = 'notes://1';
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 't', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': {},
    'io.modelcontextprotocol/logLevel': 'debug',
  };
  const response = await postMcp(gateway, JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { uri, _meta } }), {
    headers: { 'mcp-protocol-version': '2026-07-28', 'mcp-method': method, 'mcp-name': uri },
  });
  await mcp.reset();
  expect(response.text).toContain('my credential is [redacted]');
  expect(response.text).not.toContain(MCP_TOKEN);
});

describe('an undo that the caller names', () => {
  const undoHeader = (card: string) => ({
    'oncegate-undo': JSON.stringify({ tool: 'w.refund', args: { card, note: `of ${card}`, order: 'o-1' } }),
  });

  it('is sent with the redacted value, and does not show it', async () => {
    const card = 'SECRETown-undo';
    const { body } = await call('w.charge', { card }, undoHeader(card));
    const undo = await undoCall(body.txn);
    expect(undo).toMatchObject({
      state: 'succeeded',
      args: { card: '[redacted]', note: '[redacted]', order: 'o-1' },
      result: { card: '[redacted]' },
    });
    expect(await findTraces(card)).toEqual([]);
  });

  it('shows the redacted value neither to approvers nor in a dry run', async () => {
    const card = 'SECRETown-held';
    const { body } = await call('w.held', { card }, { ...undoHeader(card), prefer: 'wait=0' });
    expect(body.state).toBe('held');
    const waiting = record(await gateway.admin('GET', '/admin/approvals')).body.items;
    expect(waiting[0].undo.args).toEqual({ card: '[redacted]', note: '[redacted]', order: 'o-1' });
    record(await call('w.held', { card }, { ...undoHeader(card), 'oncegate-dry-run': 'true' }));
    expect(await findTraces(card)).toEqual([]);
  });
});

it('a result that a person enters is redacted like an answer', async () => {
  const card = 'SECRETresolve-card';
  const { body } = await call('w.mail', { card });
  const result = { id: 1, token: 'SECRETresolve-token', echo: `it was ${card}` };
  const verdict = { verdict: 'applied', reason: 'seen', result };
  record(await gateway.admin('POST', `/admin/calls/${body.txn}/resolve`, verdict));
  const { result: kept } = record(await gateway.get(`/v1/calls/${body.txn}`)).body;
  expect(kept).toEqual({ id: 1, token: '[redacted]', echo: 'it was [redacted]' });
  expect([...(await findTraces(result.token)), ...(await findTraces(card))]).toEqual([]);
});

describe('arguments of an undo that are derived from a redacted value', () => {
  it('are redacted, and the other arguments are shown', async () => {
    const card = 'secretderived-x';
    const { body } = await call('w.derived', { card, order: 'o-7' });
    const undo = await undoCall(body.txn);
    expect(undo.args).toEqual({ card: '[redacted]', order: 'o-7', why: 'undone' });
    expect(undo.result.card).toBe('[redacted]');
    expect(await findTraces(card.toUpperCase())).toEqual([]);
  });

  it('do not show their names if a whole object is redacted', async () => {
    const { body } = await call('w.whole', { card: { sk_live_name: 'SECRETwhole' } });
    const undo = await undoCall(body.txn);
    expect(undo).toMatchObject({ state: 'succeeded', args: '[redacted]' });
    expect((await gateway.admin('GET', `/admin/calls/${body.txn}`)).body.undo.args).toBe('[redacted]');
    expect(await findTraces('SECRETwhole')).toEqual([]);
  });

  it('hide all arguments if derived and plain values cannot be told apart', async () => {
    const { body } = await call('w.number', { card: '8812345', order: 'o-7' });
    const undo = await undoCall(body.txn);
    expect(undo).toMatchObject({ state: 'succeeded', args: { pin: '[redacted]', order: '[redacted]' } });
    expect(await findTraces('8812345')).toEqual([]);
  });
});

describe('a value that a call redacts', () => {
  it('is removed from a binary answer, even if it has non-ASCII letters', async () => {
    const { body } = await call('w.bytes', { card: 'geheimerschlüssel€' });
    const bytes = Buffer.from(body.result.base64, 'base64').toString('utf8');
    expect(bytes).toContain('{"card":"[redacted]"}');
  });

  it('is removed from the content type of an answer', async () => {
    await call('w.typed', { card: 'SECRETtyped' });
    expect(await findTraces('SECRETtyped')).toEqual([]);
  });
});
