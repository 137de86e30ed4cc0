// Requests to the admin API, with the key of the signed-in person.

const KEY = 'oncegate.key';

/** How long to wait for the start of an answer. Without a limit, the page would show old data for ever. */
const RESPONSE_TIMEOUT_MS = 15_000;
/** How long to wait for the rest of an answer, which may be long on a slow connection. */
const BODY_TIMEOUT_MS = 120_000;

/** The key is kept in sessionStorage: only this tab has it, and closing the tab removes it. */
export const session = {
  get key() {
    return sessionStorage.getItem(KEY);
  },
  /** @param {string} key */
  begin(key) {
    sessionStorage.setItem(KEY, key);
  },
  end() {
    sessionStorage.removeItem(KEY);
  },
};

/** What to do about a problem: by its `code`, else by its `retry`. */
const ADVICE = /** @type {Record<string, string>} */ ({
  unauthenticated:
    'Sign in with the key of a person under "people" in the policies. The demo prints one when it starts.',
  forbidden: 'Ask a person who has that role, or have the role added to yours under "people" in the policies.',
  conflict: 'Something changed after this page was loaded. Look again before you decide.',
  not_found: 'Check the address. What it shows may have been deleted.',
  malformed: 'Correct the faults above and try again.',
  unavailable: 'Try again in a moment. /readyz says what is wrong with the gateway.',
  unreachable: 'Check that the gateway is running at this address. The page retries by itself.',
  unanswered: 'The action may or may not have been done. Look, then try again: repeating it is safe.',
  never: 'Trying again without a change will not help.',
  same_key: 'Try again. Repeating is safe.',
  after_delay: 'Try again in a moment.',
});

/** An error answer: RFC 9457 problem details, with advice. */
export class Problem extends Error {
  /** @param {Record<string, any>} body */
  constructor(body) {
    super(String(body['detail'] ?? ''));
    this.title = String(body['title'] ?? 'Unknown error');
    this.status = Number(body['status'] ?? 0);
    this.code = String(body['code'] ?? '');
    /** @type {string[]} */
    this.faults = Array.isArray(body['faults']) ? body['faults'].map(String) : [];
    this.advice = ADVICE[this.code] ?? ADVICE[String(body['retry'])] ?? '';
  }
}

/** @param {unknown} error */
export function asProblem(error) {
  if (error instanceof Problem) return error;
  if (error instanceof TypeError)
    return new Problem({ title: 'The gateway cannot be reached', detail: error.message, code: 'unreachable' });
  if (error instanceof DOMException && error.name === 'TimeoutError')
    return new Problem({
      title: 'The gateway does not answer',
      detail: error.message,
      code: 'unreachable',
    });
  return new Problem({ title: 'The console has a bug', detail: String(error) });
}

/**
 * @param {string} path
 * @param {RequestInit} [init]
 */
export function request(path, init = {}) {
  const headers = { ...init.headers, authorization: `Bearer ${session.key ?? ''}` };
  return fetch(path, { ...init, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' });
}

/** @param {Response} response */
export async function problemOf(response) {
  const text = await response.text();
  try {
    return new Problem(JSON.parse(text));
  } catch {
    return new Problem({ title: `The gateway answered ${response.status}`, detail: text.slice(0, 500) });
  }
}

/**
 * @param {'GET' | 'POST'} method
 * @param {string} path
 * @param {string} [body]
 * @returns {Promise<any>}
 */
async function send(method, path, body) {
  const sent = body === undefined ? {} : { body, headers: { 'content-type': 'application/json' } };
  const timeout = new AbortController();
  const giveUp = (/** @type {string} */ why) => timeout.abort(new DOMException(why, 'TimeoutError'));
  let timer = setTimeout(giveUp, RESPONSE_TIMEOUT_MS, `No answer within ${RESPONSE_TIMEOUT_MS / 1000} seconds.`);
  try {
    const response = await request(path, { method, ...sent, signal: timeout.signal });
    clearTimeout(timer);
    timer = setTimeout(
      giveUp,
      BODY_TIMEOUT_MS,
      `The answer started, but did not end within ${BODY_TIMEOUT_MS / 1000} seconds.`,
    );
    if (!response.ok) throw await problemOf(response);
    const text = await response.text();
    return /\bjson\b/.test(response.headers.get('content-type') ?? '') ? parseExactly(text) : text;
  } finally {
    clearTimeout(timer);
  }
}

/** @param {string} path */
export const get = (path) => send('GET', path);
/** @param {string} path @param {unknown} [body] */
export const post = (path, body = {}) => send('POST', path, JSON.stringify(body)).catch(rethrowAsUnanswered);

/**
 * Posts a body with one member exactly as the person typed it. Parsing it here would round large numbers and drop duplicate
 * names, which the gateway must see and refuse. The text must be one JSON value, so that it cannot add further members.
 * @param {string} path
 * @param {Record<string, unknown>} body
 * @param {{ name: string, text: string, what: string }} typed
 */
export function postTyped(path, body, { name, text, what }) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Problem({ title: `${what} not valid JSON`, detail: String(error), code: 'malformed' });
  }
  const { [name]: _, ...rest } = body;
  const others = Object.entries(rest).map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)},`);
  return send('POST', path, `{${others.join('')}${JSON.stringify(name)}:${text}}`).catch(rethrowAsUnanswered);
}

/** A POST without an answer may have been carried out, so its error says so. @param {unknown} error @returns {never} */
function rethrowAsUnanswered(error) {
  const { code, title, message } = asProblem(error);
  if (code === 'unreachable') throw new Problem({ title, detail: message, code: 'unanswered' });
  throw error;
}

/** Keeps the digits of numbers that JavaScript would round. @param {string} text */
function parseExactly(text) {
  const raw = /** @type {{ rawJSON?: (text: string) => unknown }} */ (/** @type {unknown} */ (JSON)).rawJSON;
  if (raw === undefined || !/\d{16}/.test(text)) return JSON.parse(text);
  const keep = (/** @type {string} */ _, /** @type {unknown} */ value, /** @type {{ source?: string }} */ context) =>
    typeof value === 'number' && context?.source !== undefined && String(value) !== context.source
      ? raw(context.source)
      : value;
  return JSON.parse(text, /** @type {(key: string, value: unknown) => unknown} */ (keep));
}

/** A path template: encodes each value as one segment. @param {TemplateStringsArray} parts @param {...string} values */
export function at(parts, ...values) {
  return String.raw({ raw: parts }, ...values.map(encodeURIComponent));
}

/** @param {string} path @param {Record<string, string | undefined>} query */
export function withQuery(path, query) {
  const set = Object.entries(query).flatMap(([name, value]) => (value ? [[name, value]] : []));
  return set.length === 0 ? path : `${path}?${new URLSearchParams(set)}`;
}
