// The effect-counting upstream: the witness every promise of the gateway is measured against. It runs with bare node and
// shares no code with the gateway, so that one mistake cannot be made on both sides.
//
//   node upstream.mjs --port 0 --journal FILE [--tether]      prints "listening <port>"; --tether: dies when stdin closes
//
// FILE           one JSON line per effect, fsynced before anything is answered; reloaded on start
// FILE.requests  every request as it arrives, not fsynced: enough to outlive a SIGKILL of this process, not a power cut
//
// A request lives like this: recorded at its headers, completed at its body's end, then either the steps of the first plan
// that matches it, or apply and 200. Steps that run out without having answered go on as if there were no plan.
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';

const MAX_BODY = 64 * 1024 * 1024;
const MAX_BIG = 1024 * 1024 * 1024;
const MAX_TIMER = 2 ** 31 - 1;

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isName = (value) => typeof value === 'string' && value !== '';
const isMs = (value) => Number.isFinite(value) && value >= 0 && value <= MAX_TIMER;
// 0 and negative pids address process groups: one typing error would kill the whole test run.
const isPid = (value) => Number.isInteger(value) && value > 1;
const isSignal = (value) => value === undefined || Object.hasOwn(os.constants.signals, value);
const isStatus = (value) => Number.isInteger(value) && value >= 200 && value <= 599;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

// ---- what is kept on disk ------------------------------------------------------------------------------------------

/** A file of JSON lines. A torn last line is cut off: nobody was answered on the strength of it. */
function openLines(file, { sync }) {
  const fd = fs.openSync(file, fs.constants.O_RDWR | fs.constants.O_CREAT, 0o644);
  const bytes = fs.readFileSync(fd);
  let size = bytes.lastIndexOf(0x0a) + 1;
  fs.ftruncateSync(fd, size);
  const loaded = bytes
    .subarray(0, size)
    .toString('utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line));
  if (sync) {
    const directory = fs.openSync(path.dirname(path.resolve(file)), 'r');
    fs.fsyncSync(fd);
    fs.fsyncSync(directory);
    fs.closeSync(directory);
  }
  return {
    loaded,
    append(value) {
      const line = Buffer.from(`${JSON.stringify(value)}\n`);
      try {
        for (let done = 0; done < line.length; ) done += fs.writeSync(fd, line, done, line.length - done, size + done);
        if (sync) fs.fsyncSync(fd);
      } catch (error) {
        fs.ftruncateSync(fd, size); // a full disk is "no effect", not half of one
        throw error;
      }
      size += line.length;
    },
    clear() {
      fs.ftruncateSync(fd, 0);
      if (sync) fs.fsyncSync(fd);
      size = 0;
    },
  };
}

function readArguments(argv) {
  const options = { port: 0, journal: undefined, tether: false };
  for (let i = 0; i < argv.length; i++) {
    if (argv[i] === '--port') options.port = Number(argv[++i]);
    else if (argv[i] === '--journal') options.journal = argv[++i];
    else if (argv[i] === '--tether') options.tether = true;
    else throw new Error(`unknown argument ${argv[i]}`);
  }
  if (!Number.isInteger(options.port) || options.port < 0 || options.port > 65535)
    throw new Error('--port: 0 to 65535');
  if (!options.journal) throw new Error('--journal FILE is required');
  return options;
}

const options = readArguments(process.argv.slice(2));
const journal = openLines(options.journal, { sync: true });
const requestLog = openLines(`${options.journal}.requests`, { sync: false });

// ---- the world: derived from the journal, so a restart derives the same one ----------------------------------------

const effects = [];
const objects = new Map(); // idempotent: path id → the object
const answered = new Map(); // keyed: route and key → {bodySha256, response}
const requests = [];
let mismatches = [];

function remember(entry) {
  effects.push(entry);
  if (entry.route === 'PUT /idempotent/objects' || entry.route === 'PUT /restored')
    objects.set(entry.target, entry.body);
  if (entry.route === 'DELETE /idempotent/objects') objects.delete(entry.target);
  if (entry.key !== null) answered.set(`${entry.route}\0${entry.key}`, entry);
}
for (const entry of journal.loaded) remember(entry);
for (const part of requestLog.loaded) {
  // Two lines a request, headers and body: one whose second line is missing was cut off by our own death.
  const known = requests[part.n - 1];
  if (known) Object.assign(known, part);
  else requests[part.n - 1] = part;
}

/** The one place where something happens. Synchronous to the end of the fsync: no other request sees half of it. */
function effect(call, response = {}) {
  const n = (effects.at(-1)?.n ?? 0) + 1;
  const { id, key, target, json: body } = call;
  const { method, bodySha256, n: request } = call.record;
  const stored = { id: `eff_${n}`, t: id, ...response };
  const entry = { n, id, route: call.route.name, method, key, target, bodySha256, body, response: stored, request };
  const complete = { ...entry, at: Date.now() };
  journal.append(complete);
  remember(complete);
  happened('applied', id);
  return { status: 200, body: stored };
}

function keyed(call) {
  const earlier = call.key === null ? undefined : answered.get(`${call.route.name}\0${call.key}`);
  if (!earlier) return effect(call);
  if (earlier.bodySha256 === call.record.bodySha256) {
    return { status: 200, body: earlier.response, headers: { 'idempotent-replayed': 'true' } };
  }
  mismatches.push({ id: call.id, key: call.key, request: call.record.n });
  happened('mismatch', call.id);
  return { status: 409, body: { error: 'this key was used with another body', key: call.key } };
}

/** Effects younger than the lie are not shown: a read replica that lags. */
function probe(call) {
  const lie = lies.get(call.id) ?? 0;
  const seen = effects.filter(
    (entry) => entry.route === 'POST /probed/orders' && entry.id === call.id && Date.now() - entry.at >= lie,
  );
  const order = seen.at(-1)?.response ?? null;
  return { status: 200, body: { found: seen.length > 0, count: seen.length, order } };
}

function objectOf(call) {
  if (!objects.has(call.target)) return { status: 404, body: { error: 'no such object', id: call.target } };
  return { status: 200, body: { id: call.target, object: objects.get(call.target) } };
}

function deleteObject(call) {
  return objects.has(call.target) ? effect(call, { deleted: true }) : objectOf(call);
}

function echo(call) {
  const { method, url, headers } = call.record;
  effect(call);
  return { status: 200, body: { method, url, headers, body: call.json ?? call.record.body } };
}

const headerKey = (call) => call.record.headers['idempotency-key'] ?? null;
const fieldKey = (call) => (isName(call.json?.meta?.key) ? call.json.meta.key : null);

// A path ending in "/" takes one more segment: the target, and the id of a call that names none elsewhere.
const routes = [
  { name: 'POST /keyed/charge', act: keyed, key: headerKey },
  { name: 'POST /keyed/refund', act: keyed, key: headerKey },
  { name: 'POST /keyed-field/charge', act: keyed, key: fieldKey },
  { name: 'PUT /idempotent/objects', path: '/idempotent/objects/', act: (call) => effect(call, { object: call.json }) },
  { name: 'PUT /restored', path: '/restored/', act: (call) => effect(call, { object: call.json }) },
  { name: 'DELETE /idempotent/objects', path: '/idempotent/objects/', act: deleteObject },
  { name: 'GET /idempotent/objects', path: '/idempotent/objects/', act: objectOf },
  { name: 'POST /probed/orders', act: (call) => effect(call, { order: call.json }) },
  { name: 'GET /probed/orders', act: probe },
  { name: 'POST /none/mail', act: (call) => effect(call) },
  {
    name: 'GET /read/items',
    path: '/read/items/',
    act: (call) => ({ status: 200, body: { id: call.target, name: `item ${call.target}` } }),
  },
  { name: 'POST /echo', act: echo, anyBody: true },
].map((route) => ({ ...route, method: route.name.split(' ')[0], path: route.path ?? route.name.split(' ')[1] }));

const statusRoute = {
  name: 'ANY /status',
  anyBody: true,
  act({ target }) {
    const status = Number(target);
    if (!isStatus(status)) return { status: 400, body: { error: 'a status from 200 to 599' } };
    return { status, body: { status } };
  },
};
const noRoute = { name: 'none', anyBody: true, act: () => ({ status: 404, body: { error: 'no such route' } }) };

function routeOf(method, pathname) {
  const below = (prefix) => pathname.startsWith(prefix) && pathname.length > prefix.length;
  const last = (prefix) => unescaped(pathname.slice(prefix.length));
  if (below('/status/')) return { route: statusRoute, target: last('/status/') };
  for (const route of routes) {
    if (route.method !== method) continue;
    if (route.path === pathname) return { route, target: null };
    if (route.path.endsWith('/') && below(route.path)) return { route, target: last(route.path) };
  }
  return { route: noRoute, target: null };
}

function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// ---- events, latches, plans ----------------------------------------------------------------------------------------

const events = new Map(); // name → times seen
const watchers = new Set(); // functions called after each event
const latches = new Map(); // name → {permits, waiting}
const lies = new Map(); // id → ms after its effect
let plans = [];
let generation = 0; // grows with each reset; what an older one still has under way has no effect any more

function happened(name, id) {
  for (const event of (id ?? null) === null ? [name] : [name, `${name}:${id}`])
    events.set(event, (events.get(event) ?? 0) + 1);
  for (const watcher of [...watchers]) watcher();
}

function latch(name) {
  const known = latches.get(name) ?? { permits: 0, waiting: [] };
  latches.set(name, known);
  return known;
}

function passLatch(name) {
  const { permits, waiting } = latch(name);
  if (permits === 0) return new Promise((resolve) => waiting.push(resolve));
  latch(name).permits -= 1;
  return undefined;
}

/** Lets go all who wait; if nobody does yet, the next one who comes. */
function release(name) {
  const held = latch(name);
  if (held.waiting.length === 0) held.permits += 1;
  for (const resolve of held.waiting.splice(0)) resolve();
}

/** After SIGKILL and SIGSTOP we go on only when the kernel has carried them out: an answer cannot overtake the signal. */
function signal(pid, name) {
  try {
    process.kill(pid, name);
    if (name !== 'SIGKILL' && name !== 'SIGSTOP') return;
    const cell = new Int32Array(new SharedArrayBuffer(4));
    for (let i = 0; i < 1000; i++) {
      const state = fs.readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ').at(-1)[0];
      if ('ZX'.includes(state) || (name === 'SIGSTOP' && 'Tt'.includes(state))) return;
      Atomics.wait(cell, 0, 0, 1);
    }
  } catch {
    // Gone already, or not ours: the test sees that for itself.
  }
}

// Each step: the check of its argument, and what it does. A step that answers or ends the socket is the last: it returns true.
const steps = {
  apply: {
    run(call) {
      call.response = guarded(call, () => usual(call));
    },
  },
  delay: { check: isMs, run: (_call, ms) => sleep(ms).then(() => false) },
  drop: { run: (call) => end(call, (socket) => socket.destroy()) },
  reset: { run: (call) => end(call, (socket) => socket.resetAndDestroy()) },
  reply: {
    check: isStatus,
    run(call, status, { body, headers }) {
      return answer(call, status, body ?? call.response?.body ?? { status, t: call.id }, headers);
    },
  },
  partial: {
    run(call) {
      const text = Buffer.from(JSON.stringify(call.response?.body ?? { t: call.id, cut: 'in the middle' }));
      const { res } = call;
      if (res.destroyed || res.headersSent) return true;
      res.writeHead(200, { 'content-type': 'application/json', 'content-length': text.length });
      res.write(text.subarray(0, text.length >> 1), () => res.destroy());
      return true;
    },
  },
  garbage: {
    run: (call) => end(call, (socket) => socket.write('\x00\xffNOT HTTP\x07 at all\r\n\r\n', () => socket.destroy())),
  },
  redirect: {
    check: (location) => isName(location) && /^[\x21-\x7e]+$/.test(location),
    run: (call, location) => answer(call, 302, { t: call.id, location }, { location }),
  },
  hang: { run: () => true },
  'late-apply': {
    check: isMs,
    run(call, ms) {
      call.applyLater = true;
      setTimeout(() => {
        if (call.generation !== generation) return;
        guarded(call, () => usual(call));
      }, ms);
    },
  },
  kill: { check: isPid, run: (_call, pid, { signal: name }) => signal(pid, name ?? 'SIGKILL') },
  'kill-all': {
    check: (pids) => Array.isArray(pids) && pids.every(isPid),
    run(_call, pids) {
      for (const pid of pids) signal(pid, 'SIGKILL');
    },
  },
  stop: { check: isPid, run: (_call, pid) => signal(pid, 'SIGSTOP') },
  lie: {
    check: isMs,
    run(call, ms) {
      lies.set(call.id, ms);
    },
  },
  big: { check: (bytes) => Number.isInteger(bytes) && bytes >= 0 && bytes <= MAX_BIG, run: answerBig },
  event: { check: isName, run: (_call, name) => happened(name) },
  wait: { check: isName, run: (_call, name) => passLatch(name) },
};

/** "drop" and {"delay": 5} to {name, value, more}, or a sentence saying what is wrong. */
function parseStep(raw) {
  if (typeof raw === 'string' && Object.hasOwn(steps, raw) && !steps[raw].check) return { name: raw, more: {} };
  if (!isObject(raw)) return `not a step: ${JSON.stringify(raw)}`;
  const name = Object.keys(raw).find((key) => Object.hasOwn(steps, key));
  if (!name || !steps[name].check?.(raw[name])) return `not a step: ${JSON.stringify(raw)}`;
  if (!isSignal(raw.signal)) return `not a signal: ${JSON.stringify(raw.signal)}`;
  if (raw.headers !== undefined && !isObject(raw.headers)) return 'headers: an object';
  return { name, value: raw[name], more: raw };
}

function parsePlan(raw) {
  if (!isObject(raw) || !Array.isArray(raw.do)) return 'a plan is {match, do: [steps], times?}';
  const { match = {}, times = 1 } = raw;
  if (!isObject(match)) return 'match: {id?, path?, method?, nth?}';
  for (const name of Object.keys(match)) {
    const good = name === 'nth' ? Number.isInteger(match.nth) && match.nth > 0 : isName(match[name]);
    if (!good || !['id', 'path', 'method', 'nth'].includes(name)) return `match: ${name} is not understood`;
  }
  if (times !== 'always' && !(Number.isInteger(times) && times > 0)) return 'times: a positive integer or "always"';
  const parsed = raw.do.map(parseStep);
  const wrong = parsed.find((step) => typeof step === 'string');
  return wrong ?? { match, left: times === 'always' ? Number.POSITIVE_INFINITY : times, steps: parsed, seen: 0 };
}

const fits = (match, call) =>
  (match.id === undefined || match.id === call.id) &&
  (match.method === undefined || match.method === call.record.method) &&
  (match.path === undefined ||
    (match.path.endsWith('*') ? call.pathname.startsWith(match.path.slice(0, -1)) : call.pathname === match.path));

/** Every plan that fits counts the request, the first that is due takes it. */
function planFor(call) {
  const fitting = plans.filter((plan) => fits(plan.match, call));
  for (const plan of fitting) plan.seen += 1;
  const due = fitting.find((plan) => plan.left > 0 && (plan.match.nth === undefined || plan.match.nth === plan.seen));
  if (due) due.left -= 1;
  return due?.steps ?? [];
}

// ---- answering -----------------------------------------------------------------------------------------------------

function answer(call, status, body, headers = {}) {
  const { res } = call;
  if (res.destroyed || res.headersSent) return true;
  const text = Buffer.from(JSON.stringify(body));
  const bodiless = status === 204 || status === 304;
  const length = bodiless ? {} : { 'content-type': 'application/json', 'content-length': text.length };
  res.writeHead(status, { ...length, ...headers });
  res.end(bodiless ? undefined : text);
  return true;
}

/** Ends the connection under the answer; on a socket that is gone already there is nothing to end. */
function end(call, how) {
  const { socket } = call;
  if (!socket.destroyed) how(socket);
  return true;
}

async function answerBig(call, bytes) {
  const { res } = call;
  if (res.destroyed || res.headersSent) return true;
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': bytes });
  const [head, tail] = bytes >= 10 ? ['{"pad":"', '"}'] : ['1'.repeat(bytes), ''];
  const block = Buffer.alloc(64 * 1024, 'x');
  res.write(head);
  for (let left = bytes - head.length - tail.length; left > 0 && !res.destroyed; left -= block.length) {
    if (res.write(block.subarray(0, Math.min(left, block.length)))) continue;
    await new Promise((resolve) => {
      const goOn = () => {
        res.off('drain', goOn);
        res.off('close', goOn);
        resolve();
      };
      res.on('drain', goOn);
      res.on('close', goOn);
    });
  }
  if (!res.destroyed) res.end(tail);
  return true;
}

/** Whatever goes wrong inside costs this request a 500 without effect, never the process. */
function guarded(call, act) {
  try {
    return act();
  } catch (error) {
    process.stderr.write(`upstream: request ${call.record.n}: ${error?.message ?? error}\n`);
    happened('error');
    return { status: 500, body: { error: 'the upstream failed', t: call.id } };
  }
}

// ---- the life of a business request --------------------------------------------------------------------------------

const inFlight = new Set();
let maxConcurrent = 0;

async function business(req, res) {
  const record = {
    n: (requests.at(-1)?.n ?? 0) + 1,
    ...{ method: req.method, url: req.url, headers: req.headers, id: null, key: null, route: null },
    ...{ complete: false, bodySha256: null, body: null, at: Date.now() },
    ...{ socket: req.socket.remotePort, connectionSerial: req.socket.serial },
  };
  requests.push(record);
  requestLog.append(record);
  const call = { req, res, record, socket: req.socket, generation, response: undefined, applyLater: false };
  const mine = () => call.generation === generation;
  inFlight.add(call);
  maxConcurrent = Math.max(maxConcurrent, inFlight.size);
  res.on('close', () => {
    inFlight.delete(call);
    if (mine() && !res.writableFinished) happened('closed', call.id);
  });

  const url = splitUrl(req.url);
  call.pathname = url.pathname;
  Object.assign(call, routeOf(req.method, url.pathname));
  identify(call, url, undefined);
  const bytes = await readBody(req);
  if (!mine()) return;
  if (bytes === undefined) return void happened('cut', call.id); // no request, so no effect
  if (bytes === null) return void answer(call, 413, { error: 'too large' }, { connection: 'close' });
  record.complete = true;
  record.bodySha256 = sha256(bytes);
  record.body = bytes.toString('utf8');
  call.json = parseJson(record.body);
  identify(call, url, call.json);
  const { n, id, key, route, complete, bodySha256, body } = record;
  requestLog.append({ n, id, key, route, complete, bodySha256, body });
  happened('received', id);

  for (const step of planFor(call)) {
    if (await steps[step.name].run(call, step.value, step.more)) return;
    if (!mine()) return;
  }
  if (!call.response && !call.applyLater) call.response = guarded(call, () => usual(call));
  const { status, body: usualBody, headers } = call.response ?? { status: 200, body: { t: call.id } };
  answer(call, status, usualBody, headers);
}

function usual(call) {
  const broken = call.record.body !== '' && call.json === undefined && !call.route.anyBody;
  return broken ? { status: 400, body: { error: 'the body is not JSON' } } : call.route.act(call);
}

function identify(call, url, json) {
  const named = [json?.id, url.searchParams.get('id')].find((id) => isName(id) || Number.isFinite(id));
  const fromPath = call.route === statusRoute ? null : call.target;
  call.json = json;
  call.record.id = call.id = named === undefined ? fromPath : String(named);
  call.record.key = call.key = call.route.key?.(call) ?? null;
  call.record.route = call.route.name;
}

function splitUrl(raw) {
  const [pathname = '/', ...rest] = raw.split('?');
  return { pathname, searchParams: new URLSearchParams(rest.join('?')) };
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** undefined: the sender went away in the middle; null: more than we take. */
async function readBody(req) {
  const chunks = [];
  let size = 0;
  try {
    for await (const chunk of req) {
      size += chunk.length;
      if (size > MAX_BODY) return null;
      chunks.push(chunk);
    }
  } catch {
    return undefined;
  }
  return req.complete ? Buffer.concat(chunks) : undefined;
}

// ---- control: /_… --------------------------------------------------------------------------------------------------

const sockets = new Set();
let connections = 0;
let unreadable = 0; // what came in and was not HTTP

const ofId = (list, id) => (id === null ? list : list.filter((item) => item.id === id));

const controls = {
  'GET /_effects': (query) => {
    const entries = ofId(effects, query.get('id'));
    const asked = ofId(requests, query.get('id'));
    const count = (route) => asked.filter((request) => request.route === route).length;
    const counts = { reads: count('GET /read/items'), probes: count('GET /probed/orders') };
    return { count: entries.length, entries, mismatches: ofId(mismatches, query.get('id')), ...counts };
  },
  'GET /_requests': (query) => {
    const entries = ofId(requests, query.get('id'));
    return { count: entries.length, entries };
  },
  'GET /_connections': () => {
    // A connection that only ever asked control routes is the test's own.
    const open = [...sockets].filter((socket) => !socket.control || socket.business).length;
    return { open, total: connections, concurrent: inFlight.size, maxConcurrent, unreadable };
  },
  'POST /_plan': (_query, json) => {
    const plan = parsePlan(json);
    if (typeof plan === 'string') throw new TypeError(plan);
    plans.push(plan);
    return { ok: true };
  },
  'POST /_release': (_query, json) => {
    if (!isName(json?.name)) throw new TypeError('{name}');
    release(json.name);
    return { ok: true };
  },
  'POST /_reset': () => {
    generation += 1;
    plans = [];
    mismatches = [];
    effects.length = requests.length = maxConcurrent = unreadable = connections = 0;
    for (const { waiting } of latches.values()) for (const resolve of waiting) resolve();
    for (const memory of [objects, answered, events, lies, latches]) memory.clear();
    for (const call of inFlight) call.socket.destroy();
    journal.clear();
    requestLog.clear();
    return { ok: true };
  },
};

async function control(req, res) {
  req.socket.control = true;
  const { pathname, searchParams } = splitUrl(req.url);
  const call = { res };
  if (req.method === 'GET' && pathname === '/_await') return awaitEvent(call, searchParams);
  const bytes = await readBody(req);
  const act = controls[`${req.method} ${pathname}`];
  if (!act) return answer(call, 404, { error: 'no such control route' });
  try {
    return answer(call, 200, act(searchParams, parseJson(bytes?.toString('utf8') ?? '')));
  } catch (error) {
    return answer(call, error instanceof TypeError ? 400 : 500, { error: error.message });
  }
}

function awaitEvent(call, query) {
  const event = query.get('event') ?? '';
  const count = Number(query.get('count') ?? 1);
  const timeout = Number(query.get('timeout') ?? 30_000);
  if (!isName(event) || !(count > 0) || !isMs(timeout)) return answer(call, 400, { error: '?event=&count=&timeout=' });
  const seen = () => events.get(event) ?? 0;
  const timer = setTimeout(() => {
    answer(call, 408, { error: `"${event}" was seen ${seen()} of ${count} times`, event, count: seen() });
  }, timeout);
  const look = () => seen() >= count && answer(call, 200, { event, count: seen() });
  watchers.add(look);
  call.res.on('close', () => {
    clearTimeout(timer);
    watchers.delete(look);
  });
  return look();
}

// ---- the process ---------------------------------------------------------------------------------------------------

const server = http.createServer((req, res) => {
  const isControl = req.url.startsWith('/_');
  req.socket[isControl ? 'control' : 'business'] = true;
  if (!isControl && req.socket.serial === undefined) req.socket.serial = ++connections;
  res.on('error', () => {});
  (isControl ? control : business)(req, res).catch((error) => {
    process.stderr.write(`upstream: ${error?.stack ?? error}\n`);
    happened('error');
    if (!res.headersSent && !res.destroyed) res.writeHead(500).end();
    else res.destroy();
  });
});
server.keepAliveTimeout = 60_000; // an idle socket closed by us at a bad moment is a fault to be asked for, not met by chance
server.on('connection', (socket) => {
  sockets.add(socket);
  socket.on('error', () => {});
  socket.on('close', () => sockets.delete(socket));
});
server.on('clientError', (_error, socket) => {
  unreadable += 1;
  if (socket.writable) socket.end('HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n');
  else socket.destroy();
});
server.on('error', (error) => {
  process.stderr.write(`upstream: ${error.message}\n`);
  process.exit(1);
});
// The witness must not be the first to fall: what slipped past every guard above is written down and survived.
process.on('uncaughtException', (error) => process.stderr.write(`upstream: uncaught ${error?.stack ?? error}\n`));
process.stdout.on('error', () => {});
process.stderr.on('error', () => {});
process.on('SIGTERM', () => process.exit(0));
if (options.tether) {
  process.stdin.on('close', () => process.exit(0));
  process.stdin.on('error', () => process.exit(0));
  process.stdin.resume();
}
server.listen(options.port, '127.0.0.1', () => process.stdout.write(`listening ${server.address().port}\n`));
