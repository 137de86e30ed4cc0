import type { ASTNode, Environment } from '@marcbachmann/cel-js';
import { formatHistoryQuery, History, type HistoryQuery } from '../../domain/calls/history.ts';
import { DURATION_PATTERN, INVALID_DURATION, parseDurationMs } from '../../domain/duration.ts';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';
import { compileGlob } from '../glob.ts';
import { describeGlobFault } from '../policy-file-schema.ts';
import { formatShortValue } from '../zod-issues.ts';

const HISTORY_USAGE = 'history.count("*.delete_*", "10m") or history.sum("payments.*", "amount", "24h")';

/** Each query reads all calls of the agent in its window, and retention removes payloads. So the window is limited. */
const MAX_HISTORY_WINDOW = '30d';

/** The path of an argument. A name with dots or spaces cannot be summed. */
const ARGUMENT_PATH = /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/;

export function registerHistory(env: Environment): Environment {
  env.registerType('History', { ctor: History, fields: {} });
  env.registerFunction('History.count(string, string): int', (history: History, glob: string, window: string) =>
    BigInt(requireAnswer(history, formatHistoryQuery('count', glob, window))),
  );
  env.registerFunction(
    'History.sum(string, string, string): double',
    (history: History, glob: string, path: string, window: string) =>
      requireAnswer(history, formatHistoryQuery('sum', glob, path, window)),
  );
  return env;
}

/** Throws when the answer is unknown, because a condition that cannot be evaluated denies. */
function requireAnswer(history: History, query: string): number {
  const answer = history.get(query);
  if (typeof answer === 'number') return answer;
  throw new ExpressionError(`history.${query} is unknown`);
}

/** The query of a node, or a sentence that says what is wrong with it. Undefined when the node has no query. */
export function parseHistoryQuery(node: ASTNode): HistoryQuery | string | undefined {
  if (node.op === 'id') return node.args === 'history' ? `history can be used only as ${HISTORY_USAGE}.` : undefined;
  if (node.op !== 'rcall') return undefined;
  const [method, receiver, args] = node.args;
  if (receiver.op !== 'id' || receiver.args !== 'history') return undefined;
  const literals = args.flatMap((arg) => (arg.op === 'value' && typeof arg.args === 'string' ? [arg.args] : []));
  const isLiteral = literals.length === args.length;
  if (method === 'count' && args.length === 2)
    return isLiteral ? parseCountQuery(literals) : describeNonLiteral(method);
  if (method === 'sum' && args.length === 3) return isLiteral ? parseSumQuery(literals) : describeNonLiteral(method);
  return `history.${method} with ${args.length} arguments does not exist. Write ${HISTORY_USAGE}.`;
}

function describeNonLiteral(method: string): string {
  return `The arguments of history.${method} must be literals, because history is read before the rule decides. Write ${HISTORY_USAGE}.`;
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
  const fault = describeGlobFault(glob);
  return fault && `The first argument ${fault} (got ${formatShortValue(glob)}).`;
}

function findPathError(path: string): string | undefined {
  if (path.startsWith('args.'))
    return `The argument must be named without args. Write ${JSON.stringify(path.slice(5))}.`;
  return ARGUMENT_PATH.test(path)
    ? undefined
    : `The argument must be a path such as "amount" or "order.total" (got ${JSON.stringify(path)}).`;
}

function findWindowError(window: string): string | undefined {
  if (!DURATION_PATTERN.test(window)) return `The window ${INVALID_DURATION} (got ${formatShortValue(window)}).`;
  return parseDurationMs(window) > parseDurationMs(MAX_HISTORY_WINDOW)
    ? `The window must be at most ${MAX_HISTORY_WINDOW} (got ${window}).`
    : undefined;
}

/** An earlier call, as a policy test gives it. */
export interface HistoryCall {
  readonly tool: string;
  readonly args: Json;
  readonly agoMs: number;
}

/** The history of a policy test. Counts as the ledger does: a negative amount is 0, and an amount that is no number is unknown. */
export function buildHistory(calls: readonly HistoryCall[], queries: readonly HistoryQuery[]): History {
  return new History(
    queries.map(({ text, glob, windowMs, sum }) => {
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
