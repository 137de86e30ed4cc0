import type { ASTNode, Environment } from '@marcbachmann/cel-js';
import { formatHistoryQuery, History, type HistoryQuery } from '../../domain/calls/history.ts';
import { DURATION_PATTERN, INVALID_DURATION, parseDurationMs } from '../../domain/duration.ts';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { compileGlob } from '../glob.ts';
import { globSchema } from '../policy-file-schema.ts';

/** `history.count("*.delete_*", "10m")` and `history.sum("payments.*", "amount", "24h")` in a rule's condition. */
const HISTORY_USAGE = 'history.count("*.delete_*", "10m") or history.sum("payments.*", "amount", "24h")';

/** Every question is a walk over the agent's calls in its window, and payloads are not kept for ever. */
const MAX_HISTORY_WINDOW = '30d';

/** A name in the path of an argument; one with dots or spaces in it cannot be added up. */
const ARGUMENT_PATH = /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/;

export function registerHistory(env: Environment): Environment {
  env.registerType('History', { ctor: History, fields: {} });
  env.registerFunction('History.count(string, string): int', (past: History, glob: string, window: string) =>
    BigInt(requireAnswer(past, formatHistoryQuery('count', glob, window))),
  );
  env.registerFunction(
    'History.sum(string, string, string): double',
    (past: History, glob: string, path: string, window: string) =>
      requireAnswer(past, formatHistoryQuery('sum', glob, path, window)),
  );
  return env;
}

/** What is not known is an error, and an error denies. */
function requireAnswer(past: History, question: string): number {
  const known = past.get(question);
  if (typeof known === 'number') return known;
  throw new ExpressionError(`history.${question} cannot be told`);
}

/** The question that a node asks, or what is wrong with it; undefined: the node does not ask. */
export function parseHistoryQuery(node: ASTNode): HistoryQuery | string | undefined {
  if (node.op === 'id') return node.args === 'history' ? `history is only for asking: ${HISTORY_USAGE}` : undefined;
  if (node.op !== 'rcall') return undefined;
  const [method, receiver, args] = node.args;
  if (receiver.op !== 'id' || receiver.args !== 'history') return undefined;
  const literals = args.flatMap((arg) => (arg.op === 'value' && typeof arg.args === 'string' ? [arg.args] : []));
  const isWhole = literals.length === args.length;
  if (method === 'count' && args.length === 2) return isWhole ? parseCountQuery(literals) : describeNonLiteral(method);
  if (method === 'sum' && args.length === 3) return isWhole ? parseSumQuery(literals) : describeNonLiteral(method);
  return `history has no ${method} of ${args.length}: write ${HISTORY_USAGE}`;
}

function describeNonLiteral(method: string): string {
  return `history.${method} takes literals only, because what it asks is read before the rule decides: ${HISTORY_USAGE}`;
}

function parseCountQuery([glob = '', window = '']: readonly string[]): HistoryQuery | string {
  const fault = findGlobError(glob) ?? findWindowError(window);
  return fault ?? { text: formatHistoryQuery('count', glob, window), glob, windowMs: parseDurationMs(window) };
}

function parseSumQuery([glob = '', path = '', window = '']: readonly string[]): HistoryQuery | string {
  const fault = findGlobError(glob) ?? findPathError(path) ?? findWindowError(window);
  const text = formatHistoryQuery('sum', glob, path, window);
  return fault ?? { text, glob, windowMs: parseDurationMs(window), sum: path.split('.') };
}

function findGlobError(glob: string): string | undefined {
  const parsed = globSchema.safeParse(glob);
  return parsed.success ? undefined : `${JSON.stringify(glob)} ${parsed.error.issues[0]?.message ?? 'is not a glob'}`;
}

function findPathError(path: string): string | undefined {
  if (path.startsWith('args.')) return `the argument is named without args: write ${JSON.stringify(path.slice(5))}`;
  return ARGUMENT_PATH.test(path)
    ? undefined
    : `${JSON.stringify(path)} is not an argument: write "amount" or "order.total"`;
}

function findWindowError(window: string): string | undefined {
  if (!DURATION_PATTERN.test(window)) return `${JSON.stringify(window)} ${INVALID_DURATION}`;
  return parseDurationMs(window) > parseDurationMs(MAX_HISTORY_WINDOW)
    ? `history goes back ${MAX_HISTORY_WINDOW} at most`
    : undefined;
}

/** A call of the past, as a policy test gives it. */
export interface HistoryCall {
  readonly tool: string;
  readonly args: Json;
  readonly agoMs: number;
}

/** The past of a policy test. Counts as the ledger does (`readPast`): a negative amount is nothing, and what is no number is unknown. */
export function buildHistory(calls: readonly HistoryCall[], questions: readonly HistoryQuery[]): History {
  return new History(
    questions.map(({ text, glob, windowMs, sum }) => {
      const covers = compileGlob(glob);
      const counted = calls.filter(({ tool, agoMs }) => covers(tool) && agoMs < windowMs);
      if (sum === undefined) return [text, counted.length] as const;
      const amounts = counted.map(({ args }) => readAmount(args, sum));
      const total = amounts.reduce((a, b) => (a === 'unknown' || b === 'unknown' ? 'unknown' : a + b), 0);
      return [text, total] as const;
    }),
  );
}

function readAmount(args: Json, path: readonly string[]): number | 'unknown' {
  let value: Json | undefined = args;
  for (const name of path) value = isJsonObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
  if (value === undefined || value === null) return 0;
  return typeof value === 'number' ? Math.max(0, value) : 'unknown';
}
