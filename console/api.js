// The admin API, asked with the key of whoever signed in.

const KEY = 'oncegate.key';

/** Whoever has not answered by then will not: the page must not wait for ever, and go on showing what it knew. */
const PATIENCE_MS = 15_000;
/** An answer that has begun may be long, and the line slow. */
const READING_MS = 120_000;

/** Of this tab alone, and gone with it. */
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

/** What to do about a problem, by its code; otherwise by whether asking again helps. */
const ADVICE = /** @type {Record<string, string>} */ ({
  unauthenticated:
    'Sign in with the key of somebody under "people" in the policies. The demo prints one when it starts.',
  forbidden: 'Ask somebody who has that role, or have it added to yours under "people" in the policies.',
  conflict: 'It has changed since this page was drawn. Look again before you decide.',
  not_found: 'It may be gone, or the address is mistyped.',
  malformed: 'Correct what is named above and try again.',
  unavailable: 'Try again in a moment. /readyz tells what is wrong with the gateway.',
  unreachable: 'Is the gateway running, and this the right address? The page tries again by itself.',
  unanswered: 'It may have been done or not: look, then try again. The same again does nothing twice.',
  never: 'Trying again will not help as it is.',
  same_key: 'Try again: it is safe.',
  after_delay: 'Try again in a moment.',
});

/** An answer that says no. */
export class Problem extends Error {
  /** @param {Record<string, any>} body */
  constructor(body) {
    super(String(body['detail'] ?? ''));
    this.title = String(body['title'] ?? 'Something went wrong');
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
  return new Problem({ title: 'The console failed', detail: String(error) });
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
async function ask(method, path, body) {
  const sent = body === undefined ? {} : { body, headers: { 'content-type': 'application/json' } };
  const patience = new AbortController();
  const giveUp = (/** @type {string} */ why) => patience.abort(new DOMException(why, 'TimeoutError'));
  let timer = setTimeout(giveUp, PATIENCE_MS, `It was asked ${PATIENCE_MS / 1000} seconds ago.`);
  try {
    const response = await request(path, { method, ...sent, signal: patience.signal });
    clearTimeout(timer);
    timer = setTimeout(giveUp, READING_MS, `Its answer began ${READING_MS / 1000} seconds ago and has not ended.`);
    if (!response.ok) throw await problemOf(response);
    const text = await response.text();
    return /\bjson\b/.test(response.headers.get('content-type') ?? '') ? parseExactly(text) : text;
  } finally {
    clearTimeout(timer);
  }
}

/** @param {string} path */
export const get = (path) => ask('GET', path);
/** @param {string} path @param {unknown} [body] */
export const post = (path, body = {}) => ask('POST', path, JSON.stringify(body)).catch(unlessUnanswered);

/**
 * With one member as somebody typed it, for the gateway to judge: read here, large numbers would be rounded and of two equal names
 * one would be gone. It must be one JSON value, so that it is a member and not several.
 * @param {string} path
 * @param {Record<string, unknown>} body
 * @param {{ name: string, text: string, what: string }} typed
 */
export function postTyped(path, body, { name, text, what }) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Problem({ title: `${what} not JSON`, detail: String(error), code: 'malformed' });
  }
  const { [name]: _, ...rest } = body;
  const others = Object.entries(rest).map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)},`);
  return ask('POST', path, `{${others.join('')}${JSON.stringify(name)}:${text}}`).catch(unlessUnanswered);
}

/** Of what was only asked it does not matter; of what was to be done nobody knows. @param {unknown} error @returns {never} */
function unlessUnanswered(error) {
  const { code, title, message } = asProblem(error);
  if (code === 'unreachable') throw new Problem({ title, detail: message, code: 'unanswered' });
  throw error;
}

/** A number that this browser would round is shown as it was written. @param {string} text */
function parseExactly(text) {
  const raw = /** @type {{ rawJSON?: (text: string) => unknown }} */ (/** @type {unknown} */ (JSON)).rawJSON;
  if (raw === undefined || !/\d{16}/.test(text)) return JSON.parse(text);
  const keep = (/** @type {string} */ _, /** @type {unknown} */ value, /** @type {{ source?: string }} */ context) =>
    typeof value === 'number' && context?.source !== undefined && String(value) !== context.source
      ? raw(context.source)
      : value;
  return JSON.parse(text, /** @type {(key: string, value: unknown) => unknown} */ (keep));
}

/** A path with what fills it in made harmless. @param {TemplateStringsArray} parts @param {...string} values */
export function at(parts, ...values) {
  return String.raw({ raw: parts }, ...values.map(encodeURIComponent));
}

/** @param {string} path @param {Record<string, string | undefined>} query */
export function withQuery(path, query) {
  const set = Object.entries(query).flatMap(([name, value]) => (value ? [[name, value]] : []));
  return set.length === 0 ? path : `${path}?${new URLSearchParams(set)}`;
}
