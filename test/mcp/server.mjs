// An MCP server that records its effects and fails as planned, over HTTP or over stdio:
//   node server.mjs --journal FILE --port N [--era both|legacy|modern] [--label NAME] [--tether] [--stdio]
// With --stdio the port carries only the control routes (/_…); without it also /mcp. See server.ts for the control routes.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { answerOtherMethod, Journal, PROMPTS, RESOURCES, TEMPLATES, TOOLS } from './server-tools.mjs';

const { values: options } = parseArgs({
  options: {
    journal: { type: 'string' },
    port: { type: 'string', default: '0' },
    era: { type: 'string', default: 'both' },
    label: { type: 'string', default: 'world' },
    tether: { type: 'boolean', default: false },
    stdio: { type: 'boolean', default: false },
  },
});
const MODERN = '2026-07-28';
const META = 'io.modelcontextprotocol';
const CAPABILITIES = { tools: { listChanged: true }, resources: { subscribe: true }, prompts: {}, completions: {} };
const journal = new Journal(options.journal);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let era = options.era;
let plans = [];
let requests = [];
let tools = initialTools();
let listing = {}; // how tools/list misbehaves: {extra, pages}
const sessions = new Map(); // id → the capabilities of its client
const questions = new Map(); // id → the function that takes the client's answer
const listeners = new Set(); // functions that each send a notification to one client
const events = new Map();
const watchers = new Set();
const latches = new Map();

function initialTools() {
  return new Map(Object.entries(TOOLS).map(([name, { about }]) => [name, { name, ...about }]));
}

function recordEvent(...names) {
  for (const name of names) events.set(name, (events.get(name) ?? 0) + 1);
  for (const check of [...watchers]) check();
}

const latch = (name) => {
  if (!latches.has(name)) latches.set(name, Promise.withResolvers?.() ?? withResolvers());
  return latches.get(name);
};
function withResolvers() {
  let resolve;
  const promise = new Promise((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

// ---- fault steps: each step changes the answer of a call; the first step that returns true ends the answer ----------

const steps = {
  apply: async (call) => {
    call.result = await run(call);
    recordEvent('applied', `applied:${call.id}`);
  },
  delay: (_call, ms) => sleep(ms),
  event: (_call, name) => recordEvent(name),
  wait: (_call, name) => latch(name).promise,
  kill: (_call, pid) => void process.kill(pid, 'SIGKILL'),
  exit: () => process.kill(process.pid, 'SIGKILL'),
  say: (call, { method, params }) => call.say(method, params),
  raw: (call, data) => call.raw(data),
  drop: (call) => call.drop(),
  headers: (call) => call.open(),
  hang: () => true,
  end: (call) => call.end(),
  status: (call, code) => call.status(code, { error: 'as planned' }),
  refuse: (call, { status, code }) =>
    call.status(status, { jsonrpc: '2.0', id: null, error: { code, message: 'as planned' } }),
  garbage: (call) => call.text('this is no {JSON'),
  big: (call, bytes) => call.answer({ result: { content: [{ type: 'text', text: 'x'.repeat(bytes) }] } }),
  deep: (call, depth) =>
    call.raw(`{"jsonrpc":"2.0","id":${JSON.stringify(call.message.id)},"result":${nested(depth)}}`),
  isError: (call, text) => call.answer({ result: { isError: true, content: [{ type: 'text', text }] } }),
  error: (call, error) => call.answer({ error }),
  wrongId: (call) => call.send({ jsonrpc: '2.0', id: 'somebody-else', result: call.result ?? { content: [] } }),
  twice: (call) => {
    for (const n of [1, 2])
      call.send({ jsonrpc: '2.0', id: call.message.id, result: { content: [{ type: 'text', text: `answer ${n}` }] } });
    return call.end();
  },
  later: (call, ms) => call.resumeLater(ms),
};
/** Reports that the answer has ended. The argument is evaluated only for its effect. */
const ended = (_effect) => true;
const nested = (depth) => `{"content":[],"deep":${'['.repeat(depth)}${']'.repeat(depth)}}`;

function planFor(call) {
  const plan = plans.find(
    ({ match = {}, left }) =>
      left > 0 &&
      (match.tool === undefined || match.tool === call.params.name) &&
      (match.method ?? 'tools/call') === call.message.method &&
      (match.id === undefined || match.id === call.id),
  );
  if (plan === undefined) return [];
  plan.left -= 1;
  return plan.do;
}

async function run(call) {
  const { method } = call.message;
  if (method !== 'tools/call') return answerTo(method, call.params);
  return TOOLS[call.params.name]?.run(call, journal) ?? { content: [{ type: 'text', text: 'done' }] };
}

function answerTo(method, params) {
  if (method === 'server/discover') return discovered;
  if (method === 'tools/list') return listTools(params);
  if (method === 'resources/list') return { resources: RESOURCES };
  if (method === 'resources/templates/list') return { resourceTemplates: TEMPLATES };
  if (method === 'prompts/list') return { prompts: PROMPTS };
  return answerOtherMethod(method, params, options.label);
}

function listTools({ cursor }) {
  const items = [...tools.values(), ...(listing.extra ?? [])];
  if (listing.pages === undefined) return { tools: items };
  const page = Number(cursor ?? 0);
  return { tools: page === 0 ? items : [], ...(page < listing.pages ? { nextCursor: String(page + 1) } : {}) };
}

/** The result that asks a modern client for input. A legacy client gets the question while the call is open. */
class InputRequired {
  constructor(name, method, params) {
    this.result = {
      resultType: 'input_required',
      inputRequests: { [name]: { method, params } },
      requestState: 'asked once',
    };
  }
}

async function serve(call) {
  const { message, params } = call;
  requests.push({ method: message.method, params, headers: call.headers, id: call.id, rpcId: message.id });
  recordEvent('received', `received:${call.id}`, message.method);
  try {
    for (const step of planFor(call)) {
      const [name, value] = typeof step === 'string' ? [step] : Object.entries(step)[0];
      if ((await steps[name](call, value)) === true) return;
    }
    call.result ??= await run(call);
    if (call.result === undefined) call.answer({ error: { code: -32601, message: `no ${message.method} here` } });
    else call.answer({ result: call.isModern ? { resultType: 'complete', ...call.result } : call.result });
  } catch (error) {
    if (!(error instanceof InputRequired)) throw error;
    call.answer({ result: error.result });
  }
}

/** A request of a client. `wire` builds the functions that send messages over the transport of the client. */
class Call {
  constructor(message, headers, isModern, capabilities, wire) {
    Object.assign(this, { message, headers, isModern, capabilities, ...wire(this) });
    this.params = message.params ?? {};
    this.id = this.params.arguments?.id ?? null;
  }

  answer(response) {
    this.send({ jsonrpc: '2.0', id: this.message.id, ...response });
    return this.end();
  }

  say(method, params) {
    this.send({ jsonrpc: '2.0', method, params });
  }

  ask(name, method, params) {
    const kind = method.split('/')[0];
    if (this.isModern) {
      const answer = this.params.inputResponses?.[name];
      if (answer !== undefined && this.params.requestState === 'asked once') return answer;
      throw new InputRequired(name, method, params);
    }
    if (this.capabilities[kind] === undefined) return undefined;
    const id = randomUUID();
    this.send({ jsonrpc: '2.0', id, method, params });
    return new Promise((resolve) => questions.set(id, resolve));
  }
}

function dispatch(message, headers, isModern, capabilities, wire) {
  if (message.method === undefined) {
    questions.get(message.id)?.(message.result);
    questions.delete(message.id);
    return undefined;
  }
  if (message.id === undefined) return undefined;
  return serve(new Call(message, headers, isModern, capabilities, wire));
}

const isModernMessage = ({ params }) => params?._meta?.[`${META}/protocolVersion`] === MODERN;
const discovered = {
  supportedVersions: [MODERN],
  capabilities: CAPABILITIES,
  serverInfo: { name: 'world', version: '1' },
};
const initialized = (params) => ({
  protocolVersion: params?.protocolVersion ?? '2025-06-18',
  capabilities: CAPABILITIES,
  serverInfo: { name: 'world', version: '1' },
});

// ---- over HTTP ---------------------------------------------------------------------------------------------------------

const resumable = new Map(); // event id → the answer that waits there

function overHttp(res) {
  return (call) => {
    const write = (text) => void (!res.destroyed && res.write(text));
    const open = () => {
      if (!res.headersSent) res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.flushHeaders();
    };
    return {
      open,
      send(message) {
        if (res.destroyed) return;
        open();
        write(`event: message\ndata: ${JSON.stringify(message)}\n\n`);
      },
      raw(data) {
        open();
        write(`data: ${data}\n\n`);
      },
      end: () => ended(res.end()),
      drop: () => ended(res.socket?.destroy()),
      status: (code, body) => ended(sendJson(res, code, body)),
      text: (body) => ended(res.writeHead(200, { 'content-type': 'application/json' }).end(body)),
      resumeLater(ms) {
        const id = randomUUID();
        open();
        write(`id: ${id}\nretry: ${ms}\ndata:\n\n`);
        resumable.set(id, { jsonrpc: '2.0', id: call.message.id, result: call.result });
        return ended(res.end());
      },
    };
  };
}

function sendJson(res, status, body, headers = {}) {
  if (res.headersSent || res.destroyed) return;
  res.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));
}

async function mcp(req, res) {
  const session = req.headers['mcp-session-id'];
  if (req.method === 'GET') return listen(req, res, session);
  if (req.method === 'DELETE') return sendJson(res, 200, {});
  const message = JSON.parse(await read(req));
  const isModern = isModernMessage(message);
  const fail = (status, code, text) =>
    sendJson(res, status, { jsonrpc: '2.0', id: message.id ?? null, error: { code, message: text } });
  if (isModern && era === 'legacy') return fail(400, -32022, 'unsupported protocol version');
  if (isModern && message.method === 'subscriptions/listen') return subscribe(res);
  if (!isModern && era === 'modern') return fail(400, -32022, 'unsupported protocol version');
  if (message.method === 'initialize') {
    const id = randomUUID();
    sessions.set(id, message.params?.capabilities ?? {});
    recordEvent('initialize');
    return sendJson(res, 200, reply(message, initialized(message.params)), { 'mcp-session-id': id });
  }
  if (!isModern && !sessions.has(session))
    return sendJson(res, 404, { jsonrpc: '2.0', id: null, error: { code: -32001, message: 'Session not found' } });
  if (message.method === undefined || message.id === undefined) res.writeHead(202).end();
  return dispatch(message, req.headers, isModern, sessions.get(session) ?? {}, overHttp(res));
}

const reply = (message, result) => ({ jsonrpc: '2.0', id: message.id, result });

function listen(req, res, session) {
  const resumed = resumable.get(req.headers['last-event-id']);
  if (resumed !== undefined) {
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    return res.end(`data: ${JSON.stringify(resumed)}\n\n`);
  }
  if (!sessions.has(session)) return sendJson(res, 405, {});
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  return keepOpen(res);
}

function subscribe(res) {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  return keepOpen(res);
}

function keepOpen(res) {
  const notify = (text) => res.write(`data: ${text}\n\n`);
  res.write(': here\n\n');
  listeners.add(notify);
  res.on('close', () => listeners.delete(notify));
  recordEvent('listening');
}

async function read(req) {
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  return Buffer.concat(chunks).toString('utf8');
}

// ---- over stdio -------------------------------------------------------------------------------------------------------

function overStdio() {
  const write = (text) => void process.stdout.write(`${text}\n`);
  return () => ({
    open() {},
    send: (message) => write(JSON.stringify(message)),
    raw: write,
    end: () => true,
    drop: () => process.exit(1),
    status: () => true,
    text: (body) => ended(write(body)),
    resumeLater: () => true,
  });
}

function stdio() {
  listeners.add((text) => process.stdout.write(`${text}\n`));
  createInterface({ input: process.stdin }).on('line', (line) => {
    const message = JSON.parse(line);
    const isModern = isModernMessage(message);
    const answer = (body) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id: message.id, ...body })}\n`);
    if (isModern && era === 'legacy') return answer({ error: { code: -32601, message: 'method not found' } });
    if (message.method === 'subscriptions/listen') return undefined;
    if (message.method === 'initialize') return answer({ result: initialized(message.params) });
    return void dispatch(message, {}, isModern, {}, overStdio());
  });
  process.stdin.on('close', () => process.exit(0));
}

// ---- control -----------------------------------------------------------------------------------------------------------

const controls = {
  'GET /_effects': () => journal.entries,
  'GET /_requests': () => requests,
  'GET /_pid': () => process.pid,
  'POST /_plan': (plan) => void plans.push({ ...plan, left: plan.times ?? 1 }),
  'POST /_tool': ({ name, ...more }) => void tools.set(name, { ...tools.get(name), name, ...more }),
  'POST /_remove-tool': ({ name }) => void tools.delete(name),
  'POST /_listing': (wanted) => {
    listing = wanted;
  },
  'POST /_era': (wanted) => {
    era = wanted;
  },
  'POST /_notify': ({ raw, message, times = 1 }) => {
    const text = raw ?? JSON.stringify({ jsonrpc: '2.0', ...message });
    for (let i = 0; i < times; i += 1) for (const notify of listeners) notify(text);
  },
  'POST /_forget-sessions': () => sessions.clear(),
  'POST /_release': (name) => latch(name).resolve(),
  'POST /_reset': () => {
    plans = [];
    requests = [];
    tools = initialTools();
    listing = {};
    journal.clear();
    for (const memory of [events, latches]) memory.clear();
  },
};

async function control(req, res) {
  const { pathname, searchParams } = new URL(req.url, 'http://localhost');
  if (pathname === '/_await') return awaitEvent(res, searchParams.get('event'), Number(searchParams.get('count') ?? 1));
  const body = await read(req);
  const act = controls[`${req.method} ${pathname}`];
  if (act === undefined) return sendJson(res, 404, { error: 'no such control route' });
  return sendJson(res, 200, act(body === '' ? undefined : JSON.parse(body)) ?? null);
}

function awaitEvent(res, event, count) {
  const check = () => (events.get(event) ?? 0) >= count && sendJson(res, 200, null);
  watchers.add(check);
  res.on('close', () => watchers.delete(check));
  check();
}

const server = http.createServer((req, res) => {
  res.on('error', () => {});
  const serves = req.url.startsWith('/_') ? control : options.stdio ? undefined : mcp;
  Promise.resolve(serves?.(req, res)).catch((error) => {
    process.stderr.write(`mcp server: ${error?.stack ?? error}\n`);
    sendJson(res, 500, { error: String(error) });
  });
});
server.keepAliveTimeout = 60_000;
server.on('error', () => {});
process.on('uncaughtException', (error) => process.stderr.write(`mcp server: uncaught ${error?.stack}\n`));
if (options.tether) process.stdin.on('close', () => process.exit(0)).resume();
server.listen(Number(options.port), '127.0.0.1', () => {
  if (!options.stdio) process.stdout.write(`listening ${server.address().port}\n`);
});
if (options.stdio) stdio();
