import { isJsonObject, type JsonObject } from '../domain/json.ts';
import { parseExact } from './exact-json.ts';
import { type Io, NotGood, UsageError } from './verb.ts';

const DEFAULT_URL = 'http://127.0.0.1:8080';
const PATIENCE_MS = 60_000;

export interface Question {
  readonly method?: 'GET' | 'POST';
  readonly query?: Readonly<Record<string, string | undefined>>;
  readonly body?: JsonObject;
  /** `optional`: there is an answer for strangers too. `none`: the question is theirs. */
  readonly key?: 'optional' | 'none';
  /** Ends the asking: nobody waits for the answer any more. */
  readonly signal?: AbortSignal;
  /** What the gateway cannot know to say: which flag would help. */
  readonly advice?: (problem: JsonObject) => string | undefined;
}

/** Asks the running gateway and resolves with its answer; whatever else comes back is told as sentences. */
export async function askGateway(io: Io, path: string, question: Question = {}): Promise<JsonObject> {
  return ask(io, path, question, parsed);
}

/** The same, for answers that are no JSON object. */
export async function askForText(io: Io, path: string, question: Question = {}): Promise<string> {
  return ask(io, path, question, (text) => text);
}

async function ask<T>(io: Io, path: string, question: Question, read: (text: string) => T | undefined): Promise<T> {
  const base = baseOf(io);
  const url = new URL(`${base}${path}`);
  for (const [name, value] of Object.entries(question.query ?? {})) {
    if (value !== undefined) url.searchParams.set(name, value);
  }
  const { status, headers, text } = await send(url, base, keyOf(io, question.key), question);
  const answer = status >= 200 && status < 300 ? read(text) : undefined;
  if (answer !== undefined) return answer;
  const problem = parsed(text);
  if (problem !== undefined && typeof problem['code'] === 'string') throw refusal(problem, headers, question.advice);
  const message = `What answers at ${base} (status ${status}) is not an Oncegate gateway, or something before it: look at ONCEGATE_URL.`;
  throw new NotGood('not_a_gateway', message, { status });
}

function baseOf(io: Io): string {
  const text = io.env['ONCEGATE_URL']?.trim() || DEFAULT_URL;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.username !== '' || url.search !== '') {
    throw new UsageError(`ONCEGATE_URL is not the address of a gateway, such as ${DEFAULT_URL}`);
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, '')}`;
}

function keyOf(io: Io, need: Question['key']): string | undefined {
  const key = io.env['ONCEGATE_KEY']?.trim();
  if (need === 'none' || (!key && need === 'optional')) return undefined;
  if (!key) {
    const message =
      'ONCEGATE_KEY is not set: it holds the bearer key of a person.\n' +
      'The gateway prints the admin key of the demo when it starts. For a key of your own run "oncegate key new"\n' +
      'and put its second line below your name, under people of a policy file.';
    throw new NotGood('no_key', message);
  }
  if (!/^[\x21-\x7e]+$/.test(key)) throw new NotGood('no_key', 'ONCEGATE_KEY holds characters that no key has.');
  return key;
}

interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

async function send(url: URL, base: string, key: string | undefined, question: Question): Promise<Reply> {
  const { method, body, signal } = question;
  const patience = AbortSignal.timeout(PATIENCE_MS);
  try {
    const response = await fetch(url, {
      method: method ?? 'GET',
      headers: {
        accept: 'application/json',
        ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      body: body === undefined ? null : JSON.stringify(body),
      // A key is for the gateway that was named, not for where it points.
      redirect: 'manual',
      signal: signal === undefined ? patience : AbortSignal.any([signal, patience]),
    });
    return { status: response.status, headers: response.headers, text: await response.text() };
  } catch (error) {
    throw new NotGood('no_gateway', unreachable(base, error));
  }
}

function unreachable(base: string, error: unknown): string {
  const { name, message, cause } = error as Error & { cause?: NodeJS.ErrnoException };
  if (name === 'TimeoutError') return `the gateway at ${base} did not answer within ${PATIENCE_MS / 1_000} s`;
  if (cause?.code === 'ECONNREFUSED') return `no gateway at ${base}; start one with npm start, or set ONCEGATE_URL`;
  return `cannot ask the gateway at ${base}: ${cause?.code ?? cause?.message ?? message}; look at ONCEGATE_URL`;
}

function parsed(text: string): JsonObject | undefined {
  try {
    const value = parseExact(text);
    return isJsonObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

const NEXT: Readonly<Record<string, string>> = {
  unauthenticated:
    'Set ONCEGATE_KEY to the key of a person: the gateway prints the admin key of the demo when it starts.',
  forbidden: 'Ask with the key of a person whose roles in the policies allow it.',
  not_found: '"oncegate calls" lists the calls that there are.',
  conflict: '"oncegate call <txn>" shows how it stands.',
};

/** Title, detail, what is wrong in each place, and what to do next. */
function refusal(problem: JsonObject, headers: Headers, advice: Question['advice']): NotGood {
  const code = String(problem['code']);
  const { title, detail, faults } = problem;
  const said = [title, detail].filter((text) => typeof text === 'string' && text !== '') as string[];
  const delay = headers.get('retry-after');
  const next =
    problem['retry'] === 'after_delay'
      ? `Ask again${delay === null ? ' later' : ` in ${delay} s`}.`
      : (advice?.(problem) ?? NEXT[code]);
  const lines = [
    `${said.map(sentence).join(' ')} (${code})`.trim(),
    ...(Array.isArray(faults)
      ? faults.map((fault) => `  ${typeof fault === 'string' ? fault : JSON.stringify(fault)}`)
      : []),
    ...(next === undefined ? [] : [next]),
  ];
  return new NotGood(code, lines.join('\n'), { problem });
}

function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
