import { isJsonObject, type JsonObject } from '../domain/json.ts';
import { parseExact } from './exact-json.ts';
import { type Io, UsageError, VerbError } from './verb.ts';

const DEFAULT_URL = 'http://127.0.0.1:8080';
const REQUEST_TIMEOUT_MS = 60_000;

export interface GatewayRequest {
  readonly method?: 'GET' | 'POST';
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly body?: JsonObject;
  /** `optional`: send a key if there is one. `none`: send no key. Default: a key is required. */
  readonly key?: 'optional' | 'none';
  /** Aborts the request. */
  readonly signal?: AbortSignal;
  /** Advice for the person after a problem, such as a CLI option that helps. The gateway does not know CLI options. */
  readonly advice?: (problem: JsonObject) => string | undefined;
}

/** Sends a request to the running gateway and returns its JSON answer. Anything else is thrown as a `VerbError`. */
export async function requestGateway(io: Io, path: string, request: GatewayRequest = {}): Promise<JsonObject> {
  return requestAndRead(io, path, request, parseObject);
}

/** Like `requestGateway`, for answers that are not a JSON object. */
export async function requestText(io: Io, path: string, request: GatewayRequest = {}): Promise<string> {
  return requestAndRead(io, path, request, (text) => text);
}

async function requestAndRead<T>(
  io: Io,
  path: string,
  request: GatewayRequest,
  read: (text: string) => T | undefined,
): Promise<T> {
  const base = readBaseUrl(io);
  const url = new URL(`${base}${path}`);
  for (const [name, value] of Object.entries(request.query ?? {})) {
    if (value !== undefined) url.searchParams.set(name, value);
  }
  const { status, headers, text } = await send(url, base, readKey(io, request.key), request);
  const answer = status >= 200 && status < 300 ? read(text) : undefined;
  if (answer !== undefined) return answer;
  const problem = parseObject(text);
  if (problem !== undefined && typeof problem['code'] === 'string')
    throw buildProblemError(problem, headers, request.advice);
  const message = `The server at ${base} did not answer as an Oncegate gateway does (status ${status}). Check ONCEGATE_URL.`;
  throw new VerbError('not_a_gateway', message, { status });
}

function readBaseUrl(io: Io): string {
  const text = io.env['ONCEGATE_URL']?.trim() || DEFAULT_URL;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.username !== '' || url.search !== '') {
    throw new UsageError(`ONCEGATE_URL must be the URL of a gateway, such as ${DEFAULT_URL}`);
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, '')}`;
}

function readKey(io: Io, need: GatewayRequest['key']): string | undefined {
  const key = io.env['ONCEGATE_KEY']?.trim();
  if (need === 'none' || (!key && need === 'optional')) return undefined;
  if (!key) {
    const message =
      'ONCEGATE_KEY is not set. Set it to the bearer key of a person.\n' +
      'For the demo, use the admin key that the gateway prints when it starts.\n' +
      'For your own key, run "oncegate key new" and put its second line below your name, under "people" of a policy file.';
    throw new VerbError('no_key', message);
  }
  if (!/^[\x21-\x7e]+$/.test(key))
    throw new VerbError('no_key', 'ONCEGATE_KEY has characters that no key has. Copy the key again.');
  return key;
}

interface GatewayReply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

async function send(url: URL, base: string, key: string | undefined, request: GatewayRequest): Promise<GatewayReply> {
  const { method, body, signal } = request;
  const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
  try {
    const response = await fetch(url, {
      method: method ?? 'GET',
      headers: {
        accept: 'application/json',
        ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      body: body === undefined ? null : JSON.stringify(body),
      // Do not follow redirects: the key must reach only the gateway that ONCEGATE_URL names.
      redirect: 'manual',
      signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
    });
    return { status: response.status, headers: response.headers, text: await response.text() };
  } catch (error) {
    throw new VerbError('no_gateway', explainConnectionFailure(base, error));
  }
}

function explainConnectionFailure(base: string, error: unknown): string {
  const { name, message, cause } = error as Error & { cause?: NodeJS.ErrnoException };
  if (name === 'TimeoutError') return `The gateway at ${base} did not answer within ${REQUEST_TIMEOUT_MS / 1_000} s.`;
  if (cause?.code === 'ECONNREFUSED')
    return `There is no gateway at ${base}. Start one with "npm start", or set ONCEGATE_URL.`;
  return `Cannot reach the gateway at ${base} (${cause?.code ?? cause?.message ?? message}). Check ONCEGATE_URL.`;
}

function parseObject(text: string): JsonObject | undefined {
  try {
    const value = parseExact(text);
    return isJsonObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

const NEXT_STEPS: Readonly<Record<string, string>> = {
  unauthenticated:
    'Set ONCEGATE_KEY to the key of a person. For the demo, use the admin key that the gateway prints when it starts.',
  forbidden: 'Use the key of a person whose roles in the policies allow this.',
  not_found: '"oncegate calls" lists the calls.',
  conflict: '"oncegate call <txn>" shows the state of the call.',
};

/** Title, detail, the list of faults, and what to do next. */
function buildProblemError(problem: JsonObject, headers: Headers, advice: GatewayRequest['advice']): VerbError {
  const code = String(problem['code']);
  const { title, detail, faults } = problem;
  const sentences = [title, detail].filter((text) => typeof text === 'string' && text !== '') as string[];
  const delay = headers.get('retry-after');
  const next =
    problem['retry'] === 'after_delay'
      ? `Try again${delay === null ? ' later' : ` in ${delay} s`}.`
      : (advice?.(problem) ?? NEXT_STEPS[code]);
  const lines = [
    `${sentences.map(endSentence).join(' ')} (${code})`.trim(),
    ...(Array.isArray(faults)
      ? faults.map((fault) => `  ${typeof fault === 'string' ? fault : JSON.stringify(fault)}`)
      : []),
    ...(next === undefined ? [] : [next]),
  ];
  return new VerbError(code, lines.join('\n'), { problem });
}

function endSentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
