import type { ASTNode, Environment } from '@marcbachmann/cel-js';
import { DURATION, milliseconds, NO_DURATION } from '../domain/duration.ts';
import { isObject, type Json } from '../domain/json.ts';
import { Past, type Question, questionText } from '../domain/past.ts';
import { ExpressionError } from '../domain/policy.ts';
import { globMatcher } from './glob.ts';
import { glob as globSchema } from './schema.ts';

/** `history.count("*.delete_*", "10m")` and `history.sum("payments.*", "amount", "24h")` in a rule's condition. */
const USAGE = 'history.count("*.delete_*", "10m") or history.sum("payments.*", "amount", "24h")';

/** Every question is a walk over the agent's calls in its window, and payloads are not kept for ever. */
const MOST_WINDOW = '30d';

/** A name in the path of an argument; one with dots or spaces in it cannot be added up. */
const PATH = /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/;

export function withHistory(env: Environment): Environment {
  env.registerType('History', { ctor: Past, fields: {} });
  env.registerFunction('History.count(string, string): int', (past: Past, glob: string, window: string) =>
    BigInt(answer(past, questionText('count', glob, window))),
  );
  env.registerFunction(
    'History.sum(string, string, string): double',
    (past: Past, glob: string, path: string, window: string) => answer(past, questionText('sum', glob, path, window)),
  );
  return env;
}

/** What is not known is an error, and an error denies. */
function answer(past: Past, question: string): number {
  const known = past.answer(question);
  if (typeof known === 'number') return known;
  throw new ExpressionError(`history.${question} cannot be told`);
}

/** The question that a node asks, or what is wrong with it; undefined: the node does not ask. */
export function questionAt(node: ASTNode): Question | string | undefined {
  if (node.op === 'id') return node.args === 'history' ? `history is only for asking: ${USAGE}` : undefined;
  if (node.op !== 'rcall') return undefined;
  const [method, receiver, args] = node.args;
  if (receiver.op !== 'id' || receiver.args !== 'history') return undefined;
  const literals = args.flatMap((arg) => (arg.op === 'value' && typeof arg.args === 'string' ? [arg.args] : []));
  const isWhole = literals.length === args.length;
  if (method === 'count' && args.length === 2) return isWhole ? countOf(literals) : notLiteral(method);
  if (method === 'sum' && args.length === 3) return isWhole ? sumOf(literals) : notLiteral(method);
  return `history has no ${method} of ${args.length}: write ${USAGE}`;
}

function notLiteral(method: string): string {
  return `history.${method} takes literals only, because what it asks is read before the rule decides: ${USAGE}`;
}

function countOf([glob = '', window = '']: readonly string[]): Question | string {
  const fault = globFault(glob) ?? windowFault(window);
  return fault ?? { text: questionText('count', glob, window), glob, windowMs: milliseconds(window) };
}

function sumOf([glob = '', path = '', window = '']: readonly string[]): Question | string {
  const fault = globFault(glob) ?? pathFault(path) ?? windowFault(window);
  const text = questionText('sum', glob, path, window);
  return fault ?? { text, glob, windowMs: milliseconds(window), sum: path.split('.') };
}

function globFault(glob: string): string | undefined {
  const parsed = globSchema.safeParse(glob);
  return parsed.success ? undefined : `${JSON.stringify(glob)} ${parsed.error.issues[0]?.message ?? 'is not a glob'}`;
}

function pathFault(path: string): string | undefined {
  if (path.startsWith('args.')) return `the argument is named without args: write ${JSON.stringify(path.slice(5))}`;
  return PATH.test(path) ? undefined : `${JSON.stringify(path)} is not an argument: write "amount" or "order.total"`;
}

function windowFault(window: string): string | undefined {
  if (!DURATION.test(window)) return `${JSON.stringify(window)} ${NO_DURATION}`;
  return milliseconds(window) > milliseconds(MOST_WINDOW) ? `history goes back ${MOST_WINDOW} at most` : undefined;
}

/** A call of the past, as a policy test gives it. */
export interface PastCall {
  readonly tool: string;
  readonly args: Json;
  readonly agoMs: number;
}

/** The past of a policy test. Counts as the ledger does (`readPast`): a negative amount is nothing, and what is no number is unknown. */
export function pastOf(calls: readonly PastCall[], questions: readonly Question[]): Past {
  return new Past(
    questions.map(({ text, glob, windowMs, sum }) => {
      const covers = globMatcher(glob);
      const counted = calls.filter(({ tool, agoMs }) => covers(tool) && agoMs < windowMs);
      if (sum === undefined) return [text, counted.length] as const;
      const amounts = counted.map(({ args }) => amountAt(args, sum));
      const total = amounts.reduce((a, b) => (a === 'unknown' || b === 'unknown' ? 'unknown' : a + b), 0);
      return [text, total] as const;
    }),
  );
}

function amountAt(args: Json, path: readonly string[]): number | 'unknown' {
  let value: Json | undefined = args;
  for (const name of path) value = isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
  if (value === undefined || value === null) return 0;
  return typeof value === 'number' ? Math.max(0, value) : 'unknown';
}
