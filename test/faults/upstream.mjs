// The upstream that counts effects; tests measure every promise of the gateway against it. It runs with plain node and shares
// no code with the gateway, so that one mistake cannot affect both sides.
//
//   node upstream.mjs --port 0 --journal FILE [--tether]      prints "listening <port>"; --tether: exits when stdin closes
//
// FILE           one JSON line per effect, fsynced before the answer; reloaded on start
// FILE.requests  every request as it arrives, not fsynced: survives a SIGKILL of this process but not a power cut
//
// A request is recorded when its headers arrive and completed when its body ends. Then the steps of the first matching plan run.
// Without a plan, or after steps that did not answer, the request is applied and answered 200.
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';

const MAX_BODY_BYTES = 64 * 1024 * 1024;
const MAX_BIG_BYTES = 1024 * 1024 * 1024;
const MAX_TIMER_MS = 2 ** 31 - 1;

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
const isName = (value) => typeof value === 'string' && value !== '';
const isMs = (value) => Number.isFinite(value) && value >= 0 && value <= MAX_TIMER_MS;
// 0 and negative pids address process groups: a typo would kill the whole test run.
const isPid = (value) => Number.isInteger(value) && value > 1;
const isSignal = (value) => value === undefined || Object.hasOwn(os.constants.signals, value);
const isStatus = (value) => Number.isInteger(value) && value >= 200 && value <= 599;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');

// ---- files on disk -------------------------------------------------------------------------------------------------

/** Opens a file of JSON lines. Cuts off a torn last line, because no answer followed it. */
function openJsonLines(file, { sync }) {
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
        fs.ftruncateSync(fd, size); // a full disk means no effect, not half an effect
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
    else throw new Error(`Unknown argument ${argv[i]}.`);
  }
  if (!Number.isInteger(options.port) || options.port < 0 || options.port > 65535)
    throw new Error('--port must be an integer from 0 to 65535.');
  if (!options.journal) throw new Error('--journal FILE is required.');
  return options;
}

const options = readArguments(process.argv.slice(2));
const journal = openJsonLines(options.journal, { sync: true });
const requestLog = openJsonLines(`${options.journal}.requests`, { sync: false });

// ---- state: derived from the journal, so a restart derives the same state ------------------------------------------

const effects = [];
const objects = new Map(); // idempotent: path id → the object
const answered = new Map(); // keyed: route and key → {bodySha256, response}
const requests = [];
let mismatches = [];

function addToState(entry) {
  effects.push(entry);
  if (entry.route === 'PUT /idempotent/objects' || entry.route === 'PUT /restored')
    objects.set(entry.target, entry.body);
  if (entry.route === 'DELETE /idempotent/objects') objects.delete(entry.target);
  if (entry.key !== null) answered.set(`${entry.route}\0${entry.key}`, entry);
}
for (const entry of journal.loaded) addToState(entry);
for (const part of requestLog.loaded) {
  // A request has two lines, for headers and body. The second is missing if this process died in between.
  const known = requests[part.n - 1];
  if (known) Object.assign(known, part);
  else requests[part.n - 1] = part;
}

/** The only function that causes an effect. Synchronous until the fsync ends, so that no request sees half of it. */
function applyEffect(call, response = {}) {
  const n = (effects.at(-1)?.n ?? 0) + 1;
  const { id, key, target, json: body } = call;
  const { method, bodySha256, n: request } = call.record;
  const stored = { id: `eff_${n}`, t: id, ...response };
  const entry = { n, id, route: call.route.name, method, key, target, bodySha256, body, response: stored, request };
  const complete = { ...entry, at: Date.now() };
  journal.append(complete);
  addToState(complete);
  recordEvent('applied', id);
  return { status: 200, body: stored };
}

function applyKeyed(call) {
  const earlier = call.key === null ? undefined : answered.get(`${call.route.name}\0${call.key}`);
  if (!earlier) return applyEffect(call);
  if (earlier.bodySha256 === call.record.bodySha256) {
    return { status: 200, body: earlier.response, headers: { 'idempotent-replayed': 'true' } };
  }
  mismatches.push({ id: call.id, key: call.key, request: call.record.n });
  recordEvent('mismatch', call.id);
  return { status: 409, body: { error: 'this key was used with another body', key: call.key } };
}

/** Hides effects that are younger than the lie, like a read replica that lags. */
function answerProbe(call) {
  const lie = lies.get(call.id) ?? 0;
  const seen = effects.filter(
    (entry) => entry.route === 'POST /probed/orders' && entry.id === call.id && Date.now() - entry.at >= lie,
  );
  const order = seen.at(-1)?.response ?? null;
  return { status: 200, body: { found: seen.length > 0, count: seen.length, order } };
}

function readObject(call) {
  if (!objects.has(call.target)) return { status: 404, body: { error: 'no such object', id: call.target } };
  return { status: 200, body: { id: call.target, object: objects.get(call.target) } };
}

function deleteObject(call) {
  return objects.has(call.target) ? applyEffect(call, { deleted: true }) : readObject(call);
}

function echo(call) {
  const { method, url, headers } = call.record;
  applyEffect(call);
  return { status: 200, body: { method, url, headers, body: call.json ?? call.record.body } };
}

const readHeaderKey = (call) => call.record.headers['idempotency-key'] ?? null;
const readFieldKey = (call) => (isName(call.json?.meta?.key) ? call.json.meta.key : null);

// A path that ends in "/" takes one more segment: the target. It is also the id of a call without another id.
const routes = [
  { name: 'POST /keyed/charge', act: applyKeyed, key: readHeaderKey },
  { name: 'POST /keyed/refund', act: applyKeyed, key: readHeaderKey },
  { name: 'POST /keyed-field/charge', act: applyKeyed, key: readFieldKey },
  {
    name: 'PUT /idempotent/objects',
    path: '/idempotent/objects/',
    act: (call) => applyEffect(call, { object: call.json }),
  },
  { name: 'PUT /restored', path: '/restored/', act: (call) => applyEffect(call, { object: call.json }) },
  { name: 'DELETE /idempotent/objects', path: '/idempotent/objects/', act: deleteObject },
  { name: 'GET /idempotent/objects', path: '/idempotent/objects/', act: readObject },
  { name: 'POST /probed/orders', act: (call) => applyEffect(call, { order: call.json }) },
  { name: 'GET /probed/orders', act: answerProbe },
  { name: 'POST /none/mail', act: (call) => applyEffect(call) },
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

function findRoute(method, pathname) {
  const isBelow = (prefix) => pathname.startsWith(prefix) && pathname.length > prefix.length;
  const readTarget = (prefix) => decodeSegment(pathname.slice(prefix.length));
  if (isBelow('/status/')) return { route: statusRoute, target: readTarget('/status/') };
  for (const route of routes) {
    if (route.method !== method) continue;
    if (route.path === pathname) return { route, target: null };
    if (route.path.endsWith('/') && isBelow(route.path)) return { route, target: readTarget(route.path) };
  }
  return { route: noRoute, target: null };
}

function decodeSegment(text) {
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
let generation = 0; // grows with each reset; requests of an older generation have no effect any more

function recordEvent(name, id) {
  for (const event of (id ?? null) === null ? [name] : [name, `${name}:${id}`])
    events.set(event, (events.get(event) ?? 0) + 1);
  for (const watcher of [...watchers]) watcher();
}

function getLatch(name) {
  const known = latches.get(name) ?? { permits: 0, waiting: [] };
  latches.set(name, known);
  return known;
}

function passLatch(name) {
  const { permits, waiting } = getLatch(name);
  if (permits === 0) return new Promise((resolve) => waiting.push(resolve));
  getLatch(name).permits -= 1;
  return undefined;
}

/** Releases every waiting request, or the next one if none waits yet. */
function release(name) {
  const held = getLatch(name);
  if (held.waiting.length === 0) held.permits += 1;
  for (const resolve of held.waiting.splice(0)) resolve();
}

/** Returns only after the kernel carried out a SIGKILL or SIGSTOP, so that no answer overtakes the signal. */
function sendSignal(pid, name) {
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
    // The process is gone or not ours. The test finds out by itself.
  }
}

// Each step checks its argument and runs. A step that answers or ends the socket returns true, which ends the plan.
const steps = {
  apply: {
    run(call) {
      call.response = catchErrors(call, () => applyRoute(call));
    },
  },
  delay: { check: isMs, run: (_call, ms) => sleep(ms).then(() => false) },
  drop: { run: (call) => endConnection(call, (socket) => socket.destroy()) },
  reset: { run: (call) => endConnection(call, (socket) => socket.resetAndDestroy()) },
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
    run: (call) =>
      endConnection(call, (socket) => socket.write('\x00\xffNOT HTTP\x07 at all\r\n\r\n', () => socket.destroy())),
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
        catchErrors(call, () => applyRoute(call));
      }, ms);
    },
  },
  kill: { check: isPid, run: (_call, pid, { signal: name }) => sendSignal(pid, name ?? 'SIGKILL') },
  'kill-all': {
    check: (pids) => Array.isArray(pids) && pids.every(isPid),
    run(_call, pids) {
      for (const pid of pids) sendSignal(pid, 'SIGKILL');
    },
  },
  stop: { check: isPid, run: (_call, pid) => sendSignal(pid, 'SIGSTOP') },
  lie: {
    check: isMs,
    run(call, ms) {
      lies.set(call.id, ms);
    },
  },
  big: { check: (bytes) => Number.isInteger(bytes) && bytes >= 0 && bytes <= MAX_BIG_BYTES, run: answerBig },
  event: { check: isName, run: (_call, name) => recordEvent(name) },
  wait: { check: isName, run: (_call, name) => passLatch(name) },
};

/** Turns "drop" or {"delay": 5} into {name, value, more}. Returns a string that names the mistake if there is one. */
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
    const isValid = name === 'nth' ? Number.isInteger(match.nth) && match.nth > 0 : isName(match[name]);
    if (!isValid || !['id', 'path', 'method', 'nth'].includes(name)) return `match: ${name} is not understood`;
  }
  if (times !== 'always' && !(Number.isInteger(times) && times > 0)) return 'times: a positive integer or "always"';
  const parsed = raw.do.map(parseStep);
  const mistake = parsed.find((step) => typeof step === 'string');
  return mistake ?? { match, left: times === 'always' ? Number.POSITIVE_INFINITY : times, steps: parsed, seen: 0 };
}

const matchesCall = (match, call) =>
  (match.id === undefined || match.id === call.id) &&
  (match.method === undefined || match.method === call.record.method) &&
  (match.path === undefined ||
    (match.path.endsWith('*') ? call.pathname.startsWith(match.path.slice(0, -1)) : call.pathname === match.path));

/** Every matching plan counts the request; the first one that is due provides the steps. */
function takeSteps(call) {
  const matching = plans.filter((plan) => matchesCall(plan.match, call));
  for (const plan of matching) plan.seen += 1;
  const due = matching.find((plan) => plan.left > 0 && (plan.match.nth === undefined || plan.match.nth === plan.seen));
  if (due) due.left -= 1;
  return due?.steps ?? [];
}

// ---- answering -----------------------------------------------------------------------------------------------------

function answer(call, status, body, headers = {}) {
  const { res } = call;
  if (res.destroyed || res.headersSent) return true;
  const text = Buffer.from(JSON.stringify(body));
  const hasNoBody = status === 204 || status === 304;
  const length = hasNoBody ? {} : { 'content-type': 'application/json', 'content-length': text.length };
  res.writeHead(status, { ...length, ...headers });
  res.end(hasNoBody ? undefined : text);
  return true;
}

/** Ends the connection instead of answering. Does nothing if the socket is already closed. */
function endConnection(call, close) {
  const { socket } = call;
  if (!socket.destroyed) close(socket);
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
      const resume = () => {
        res.off('drain', resume);
        res.off('close', resume);
        resolve();
      };
      res.on('drain', resume);
      res.on('close', resume);
    });
  }
  if (!res.destroyed) res.end(tail);
  return true;
}

/** Turns an exception into a 500 without effect for this request; the process survives. */
function catchErrors(call, act) {
  try {
    return act();
  } catch (error) {
    process.stderr.write(`upstream: request ${call.record.n}: ${error?.message ?? error}\n`);
    recordEvent('error');
    return { status: 500, body: { error: 'the upstream failed', t: call.id } };
  }
}

// ---- business requests ---------------------------------------------------------------------------------------------

const inFlight = new Set();
let maxConcurrent = 0;

async function handleBusiness(req, res) {
  const record = {
    n: (requests.at(-1)?.n ?? 0) + 1,
    ...{ method: req.method, url: req.url, headers: req.headers, id: null, key: null, route: null },
    ...{ complete: false, bodySha256: null, body: null, at: Date.now() },
    ...{ socket: req.socket.remotePort, connectionSerial: req.socket.serial },
  };
  requests.push(record);
  requestLog.append(record);
  const call = { req, res, record, socket: req.socket, generation, response: undefined, applyLater: false };
  const isCurrent = () => call.generation === generation;
  inFlight.add(call);
  maxConcurrent = Math.max(maxConcurrent, inFlight.size);
  res.on('close', () => {
    inFlight.delete(call);
    if (isCurrent() && !res.writableFinished) recordEvent('closed', call.id);
  });

  const url = splitUrl(req.url);
  call.pathname = url.pathname;
  Object.assign(call, findRoute(req.method, url.pathname));
  identify(call, url, undefined);
  const bytes = await readBody(req);
  if (!isCurrent()) return;
  if (bytes === undefined) return void recordEvent('cut', call.id); // an incomplete request has no effect
  if (bytes === null) return void answer(call, 413, { error: 'too large' }, { connection: 'close' });
  record.complete = true;
  record.bodySha256 = sha256(bytes);
  record.body = bytes.toString('utf8');
  call.json = parseJson(record.body);
  identify(call, url, call.json);
  const { n, id, key, route, complete, bodySha256, body } = record;
  requestLog.append({ n, id, key, route, complete, bodySha256, body });
  recordEvent('received', id);

  for (const step of takeSteps(call)) {
    if (await steps[step.name].run(call, step.value, step.more)) return;
    if (!isCurrent()) return;
  }
  if (!call.response && !call.applyLater) call.response = catchErrors(call, () => applyRoute(call));
  const { status, body: responseBody, headers } = call.response ?? { status: 200, body: { t: call.id } };
  answer(call, status, responseBody, headers);
}

function applyRoute(call) {
  const isBroken = call.record.body !== '' && call.json === undefined && !call.route.anyBody;
  return isBroken ? { status: 400, body: { error: 'the body is not JSON' } } : call.route.act(call);
}

function identify(call, url, json) {
  const explicitId = [json?.id, url.searchParams.get('id')].find((id) => isName(id) || Number.isFinite(id));
  const fromPath = call.route === statusRoute ? null : call.target;
  call.json = json;
  call.record.id = call.id = explicitId === undefined ? fromPath : String(explicitId);
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

/** Returns undefined if the sender disconnected during the body, null if the body is too large. */
async function readBody(req) {
  const chunks = [];
  let size = 0;
  try {
    for await (const chunk of req) {
      size += chunk.length;
      if (size > MAX_BODY_BYTES) return null;
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
let unreadable = 0; // number of inputs that were not HTTP

const filterById = (list, id) => (id === null ? list : list.filter((item) => item.id === id));

const controls = {
  'GET /_effects': (query) => {
    const entries = filterById(effects, query.get('id'));
    const matching = filterById(requests, query.get('id'));
    const count = (route) => matching.filter((request) => request.route === route).length;
    const counts = { reads: count('GET /read/items'), probes: count('GET /probed/orders') };
    return { count: entries.length, entries, mismatches: filterById(mismatches, query.get('id')), ...counts };
  },
  'GET /_requests': (query) => {
    const entries = filterById(requests, query.get('id'));
    return { count: entries.length, entries };
  },
  'GET /_connections': () => {
    // A connection that used only control routes belongs to the test and is not counted.
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

async function handleControl(req, res) {
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
  const answerIfSeen = () => seen() >= count && answer(call, 200, { event, count: seen() });
  watchers.add(answerIfSeen);
  call.res.on('close', () => {
    clearTimeout(timer);
    watchers.delete(answerIfSeen);
  });
  return answerIfSeen();
}

// ---- the process ---------------------------------------------------------------------------------------------------

const server = http.createServer((req, res) => {
  const isControl = req.url.startsWith('/_');
  req.socket[isControl ? 'control' : 'business'] = true;
  if (!isControl && req.socket.serial === undefined) req.socket.serial = ++connections;
  res.on('error', () => {});
  (isControl ? handleControl : handleBusiness)(req, res).catch((error) => {
    process.stderr.write(`upstream: ${error?.stack ?? error}\n`);
    recordEvent('error');
    if (!res.headersSent && !res.destroyed) res.writeHead(500).end();
    else res.destroy();
  });
});
server.keepAliveTimeout = 60_000; // long, so that this process never closes an idle socket by chance; tests plan such faults
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
// The upstream must outlive its own mistakes, because the tests depend on it: an uncaught error is only logged.
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
