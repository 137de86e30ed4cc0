import type { PreparedRequest, RequestInput } from '../../gateway/domain/attempts/adapter.ts';
import { canonicalize, NotCanonicalError } from '../../gateway/domain/canonical.ts';
import { GatewayError } from '../../gateway/domain/errors.ts';
import { isJsonObject, type Json } from '../../gateway/domain/json.ts';
import {
  type Expression,
  ExpressionError,
  type ExpressionScope,
  type RequestTemplate,
  type Tool,
} from '../../gateway/domain/policy.ts';

/** Characters that a server could misread in a header: control characters, and all beyond Latin-1. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern must match them
const UNSAFE_HEADER_VALUE = /[\u0000-\u0008\u000a-\u001f\u007f]|[^\u0000-\u00ff]/;

/** No common server accepts a longer path and query. A server would close the connection, or answer in a way that proves nothing. */
const MAX_TARGET_LENGTH = 16_384;
const MAX_HEADER_LENGTH = 8_192;
/** A template may repeat an argument for every item of another, so arguments within `limits.body` could render to gigabytes. */
const MAX_BODY_LENGTH = 8_388_608;

/** The expressions of a template, in the order of rendering. */
interface RenderPlan {
  readonly headers: readonly (readonly [name: string, lower: string, expression: Expression])[];
  readonly query: readonly (readonly [name: string, expression: Expression])[];
}

/** Built once per template. The policies in force own the templates. */
const plansByTemplate = new WeakMap<RequestTemplate, RenderPlan>();

function getRenderPlan(template: RequestTemplate): RenderPlan {
  let plan = plansByTemplate.get(template);
  if (plan === undefined) {
    const headers = Object.entries(template.headers).map(([name, value]) => [name, name.toLowerCase(), value] as const);
    plan = { headers, query: Object.entries(template.query) };
    plansByTemplate.set(template, plan);
  }
  return plan;
}

/** Renders the request of a tool. The same input and txn always give the same bytes. */
export function renderRequest(
  tool: Tool,
  template: RequestTemplate,
  input: RequestInput,
  txn: string,
  base?: string,
): PreparedRequest {
  const { args, agent, canonicalArgs, trace } = input;
  const scope: ExpressionScope = { args, agent, saga: null, run: null };
  const plan = getRenderPlan(template);
  try {
    const headers: Record<string, string> = {
      accept: 'application/json',
      'user-agent': 'oncegate',
      'oncegate-txn': txn,
    };
    if (trace !== undefined) Object.assign(headers, trace);
    for (const [name, lower, expression] of plan.headers) {
      const value = expression(scope);
      if (value !== null) headers[lower] = toHeaderValue(name, value);
    }

    let body = template.body?.(scope);
    if (tool.once.by === 'key' && tool.effect === 'write') {
      if (tool.once.header !== undefined) headers[tool.once.header.toLowerCase()] = txn;
      else if (tool.once.field !== undefined) body = setField(body ?? {}, tool.once.field, txn);
    }
    if (body !== undefined) headers['content-type'] ??= 'application/json';
    const query = plan.query.length === 0 ? '' : renderQuery(plan, scope);
    const path = template.path(scope) + query;
    if (path.length > MAX_TARGET_LENGTH) throw createTooLongError();
    return { base, method: template.method, path, headers, body: serializeBody(body, args, canonicalArgs) };
  } catch (error) {
    // A template can cut a surrogate pair of a valid text in half. Expressions accept the result, but it cannot be sent.
    if (!(error instanceof ExpressionError) && !(error instanceof NotCanonicalError)) throw error;
    throw new GatewayError(
      'invalid_arguments',
      `The request of ${tool.name} cannot be built from these arguments: ${error.message}`,
    );
  }
}

/** Most bodies are the arguments themselves, whose canonical text exists already. */
function serializeBody(body: Json | undefined, args: Json, canonicalArgs: string | undefined): string | null {
  if (body === undefined) return null;
  if (body === args && canonicalArgs !== undefined) return canonicalArgs;
  // `limits.body` may allow arguments that exceed MAX_BODY_LENGTH themselves, so their length is added.
  if (
    isLonger(body, MAX_BODY_LENGTH) &&
    isLonger(body, MAX_BODY_LENGTH + measureLength(args, Number.POSITIVE_INFINITY))
  )
    throw new ExpressionError(`the body is longer than ${MAX_BODY_LENGTH} characters`);
  return canonicalize(body);
}

function isLonger(value: Json, maxLength: number): boolean {
  return measureLength(value, maxLength) > maxLength;
}

/** A lower bound of the length of the JSON text, without quotes and escapes. Stops as soon as it exceeds `maxLength`. */
function measureLength(value: Json, maxLength: number): number {
  if (typeof value === 'string') return value.length;
  if (typeof value !== 'object' || value === null) return 1;
  const names = Array.isArray(value) ? undefined : Object.keys(value);
  const items = Object.values(value) as Json[];
  let length = 2;
  for (let i = 0; i < items.length && length <= maxLength; i++) {
    length += (names?.[i]?.length ?? 0) + 1 + measureLength(items[i] as Json, maxLength - length);
  }
  return length;
}

function renderQuery(plan: RenderPlan, scope: ExpressionScope): string {
  const query = new URLSearchParams();
  let length = 0;
  for (const [name, expression] of plan.query) {
    const value = expression(scope);
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item === null) continue;
      const text = toQueryText(item as Json);
      length += name.length + text.length;
      if (length > MAX_TARGET_LENGTH) throw createTooLongError();
      query.append(name, text);
    }
  }
  const text = query.toString();
  return text === '' ? '' : `?${text}`;
}

/** Throws for a value without canonical text. A string with a lone surrogate would be sent as another character. */
function toQueryText(item: Json): string {
  const text = canonicalize(item);
  return typeof item === 'string' ? item : text;
}

function createTooLongError(): ExpressionError {
  return new ExpressionError(`path and query are longer than ${MAX_TARGET_LENGTH} characters`);
}

function toHeaderValue(name: string, value: Json): string {
  const text = typeof value === 'string' ? value : canonicalize(value);
  if (UNSAFE_HEADER_VALUE.test(text))
    throw new ExpressionError(`the value of header ${name} contains characters that are not allowed in a header`);
  if (text.length > MAX_HEADER_LENGTH)
    throw new ExpressionError(`the value of header ${name} is longer than ${MAX_HEADER_LENGTH} characters`);
  return text;
}

export function setField(body: Json, path: readonly string[], value: string): Json {
  const [head, ...rest] = path;
  if (head === undefined) return value;
  if (!isJsonObject(body)) throw new ExpressionError(`the body has no object at ${path.join('.')} for the key`);
  return { ...body, [head]: setField(body[head] ?? {}, rest, value) };
}
