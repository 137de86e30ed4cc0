import type { ASTNode, ParseResult } from '@marcbachmann/cel-js';
import { Environment } from '@marcbachmann/cel-js';
import type { HistoryQuery } from '../../domain/calls/history.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { type Expression, ExpressionError, type ExpressionScope } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { didYouMean, formatList } from '../faults.ts';
import { attachCostMeter, celToJson, listChildren } from './expression-cost.ts';
import { compileFastPath } from './expression-fast-path.ts';
import { parseHistoryQuery, registerHistory } from './history-functions.ts';

/**
 * CEL as policies may use it: parsed and type-checked at load, and bounded in cost. JSON numbers are doubles, literals
 * such as `5` are ints; arithmetic between the two works and never loses precision silently.
 */
export type ScopeVariable = keyof ExpressionScope;

/** Where an expression stands: what it may look at, and whom to tell about it. */
export interface CompileOptions {
  readonly sees: readonly ScopeVariable[];
  /** `offset` is a position inside the expression or string. */
  fault(message: string, offset?: number): void;
  /** An argument that the expression reads without asking `has(args.…)` for it first. */
  reads?(argument: string, offset: number): void;
  /** What it asks beside the call itself, where it sees `history` and `tainted`. */
  asks?(asked: HistoryQuery | 'taint', offset: number): void;
}

const CEL_LIMITS = { maxAstNodes: 400, maxDepth: 40, maxListElements: 200, maxMapEntries: 100, maxCallArguments: 8 };
const MAX_EXPRESSION_CHARACTERS = 4096;

const VARIABLE_TYPES: Readonly<Record<ScopeVariable, string>> = {
  args: 'map',
  result: 'dyn',
  before: 'dyn',
  observed: 'dyn',
  agent: 'string',
  tool: 'string',
  saga: 'dyn',
  run: 'dyn',
  now: 'google.protobuf.Timestamp',
  history: 'History',
  tainted: 'bool',
};

/** Which values a compiled expression may turn out to have. */
const BOOLEAN_TYPES = new Set(['bool', 'dyn']);
const NUMBER_TYPES = new Set(['int', 'uint', 'double', 'dyn']);

const baseEnvironment = registerHistory(
  registerMapFunctions(
    registerMixedArithmetic(new Environment({ homogeneousAggregateLiterals: false, limits: CEL_LIMITS })),
  ),
);
const environmentsByVariables = new Map<string, Environment>();

function getEnvironment(sees: readonly ScopeVariable[]): Environment {
  const id = [...sees].sort().join();
  let env = environmentsByVariables.get(id);
  if (env === undefined) {
    env = baseEnvironment.clone();
    for (const name of sees) env.registerVariable(name, VARIABLE_TYPES[name]);
    environmentsByVariables.set(id, env);
  }
  return env;
}

function registerMixedArithmetic(env: Environment): Environment {
  const operations: Record<string, (a: number, b: number) => number> = {
    '+': (a, b) => a + b,
    '-': (a, b) => a - b,
    '*': (a, b) => a * b,
    '/': (a, b) => a / b,
    '%': (a, b) => a % b,
  };
  for (const [operator, apply] of Object.entries(operations)) {
    env.registerOperator(`double ${operator} int: double`, (a: number, b: bigint) => apply(a, toExactNumber(b)));
    env.registerOperator(`int ${operator} double: double`, (a: bigint, b: number) => apply(toExactNumber(a), b));
  }
  env.registerOperator('double % double: double', (a: number, b: number) => a % b);
  return env;
}

/** `without(args, ["id"])`: a body is often all the arguments but those that stand in the path. */
function registerMapFunctions(env: Environment): Environment {
  env.registerFunction('without(map, list): map', (map: JsonObject, names: readonly unknown[]) => omitKeys(map, names));
  return env;
}

function toExactNumber(value: bigint): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number)) throw new ExpressionError('an integer is too large to be exact');
  return number;
}

/** Any value. */
export function compileExpression(source: string, site: CompileOptions): Expression {
  return compileTyped(source, site, undefined, '');
}

/** A condition: what it yields must be true or false, nothing that merely looks like it. */
export function compileCondition(source: string, site: CompileOptions): Expression<boolean> {
  const evaluate = compileTyped(source, site, BOOLEAN_TYPES, 'true or false');
  return (scope) => {
    const value = evaluate(scope);
    if (typeof value !== 'boolean') throw new ExpressionError(`neither true nor false: \`${truncateSource(source)}\``);
    return value;
  };
}

export function compileNumber(source: string, site: CompileOptions): Expression<number> {
  const evaluate = compileTyped(source, site, NUMBER_TYPES, 'a number');
  return (scope) => {
    const value = evaluate(scope);
    if (typeof value !== 'number') throw new ExpressionError(`not a number: \`${truncateSource(source)}\``);
    return value;
  };
}

function compileTyped(
  source: string,
  site: CompileOptions,
  wanted: ReadonlySet<string> | undefined,
  as: string,
): Expression {
  const parsed = parseExpression(source, site);
  if (parsed === undefined || !analyzeAst(parsed.ast, site)) return failingExpression;
  const checked = parsed.check();
  if (!checked.valid) {
    const error = checked.error as CelError;
    site.fault(describeCheckError(error, site), error.range?.start ?? 0);
    return failingExpression;
  }
  if (wanted !== undefined && !wanted.has(checked.type ?? 'dyn')) {
    site.fault(`the expression must yield ${as}, but yields ${checked.type}`, 0);
    return failingExpression;
  }
  return compilePathAccess(source) ?? compileOmitKeys(parsed.ast) ?? buildEvaluator(parsed, source);
}

/** Stands in for what could not be compiled, so that loading goes on and finds the next fault. */
const failingExpression: Expression = () => {
  throw new ExpressionError('this expression did not compile');
};

interface CelError extends Error {
  readonly code: string;
  readonly summary: string;
  readonly range?: { readonly start: number };
  readonly node?: { readonly op?: string; readonly args?: unknown };
}

function parseExpression(source: string, site: CompileOptions): ParseResult | undefined {
  if (source.length > MAX_EXPRESSION_CHARACTERS) {
    site.fault(`the expression is longer than ${MAX_EXPRESSION_CHARACTERS} characters`);
    return undefined;
  }
  if (source.trim() === '') {
    site.fault('the expression is empty');
    return undefined;
  }
  try {
    return getEnvironment(site.sees).parse(source);
  } catch (error) {
    const { summary, message, range } = error as CelError;
    site.fault(`not an expression: ${describeParseError(summary ?? message)}`, range?.start ?? 0);
    return undefined;
  }
}

const TOKEN_NAMES: Readonly<Record<string, string>> = {
  RPAREN: '")"',
  RBRACKET: '"]"',
  RBRACE: '"}"',
  COLON: '":"',
  IDENTIFIER: 'a name',
};

/** The CEL library speaks of its tokens; who wrote the expression did not write any EOF. */
function describeParseError(summary: string): string {
  const [, wanted] = /^(?:Unexpected token: EOF|Expected (\w+), got EOF)$/.exec(summary) ?? [undefined, null];
  if (wanted === null) return summary;
  return wanted === undefined ? 'it ends too early' : `it ends too early, before ${TOKEN_NAMES[wanted] ?? wanted}`;
}

function describeCheckError(error: CelError, site: CompileOptions): string {
  if (error.code !== 'unknown_variable') return `not an expression: ${error.summary ?? error.message}`;
  const name = String(error.node?.args);
  if (name === 'env' || name === 'file') {
    return `${name} is known only in url, headers and command of an upstream and in keys`;
  }
  return `${JSON.stringify(name)} is not known here (known: ${formatList(site.sees)})${didYouMean(name, site.sees)}`;
}

const LIST_MACROS = new Set(['all', 'exists', 'exists_one', 'map', 'filter']);
/** Keys that the CEL library drops from a map literal without a word. */
const UNSAFE_MAP_KEYS = new Set(['__proto__', 'constructor', 'prototype']);

/** Reads the tree once: refuses what cannot be bounded or trusted, tells which arguments are read. */
function analyzeAst(root: ASTNode, site: CompileOptions): boolean {
  let good = true;
  const guarded = new Set<string>();
  const reads: [string, number][] = [];
  const refuse = (message: string, node: ASTNode): void => {
    good = false;
    site.fault(message, node.start);
  };
  const asksHistory = site.sees.includes('history');
  const walk = (node: ASTNode, inMacro: boolean, inHas: boolean): void => {
    const question = asksHistory ? parseHistoryQuery(node) : undefined;
    if (question !== undefined) {
      if (typeof question === 'string') refuse(question, node);
      else site.asks?.(question, node.start);
      return;
    }
    if (node.op === 'id' && node.args === 'tainted') site.asks?.('taint', node.start);
    const argument = findArgumentRead(node);
    if (argument !== undefined) {
      if (inHas) guarded.add(argument);
      else reads.push([argument, node.start]);
    }
    if (node.op === 'rcall') {
      const [name, receiver, args] = node.args;
      if (name === 'matches') refuse('matches() is refused: a regular expression can stall the gateway', node);
      walk(receiver, inMacro, false);
      if (!LIST_MACROS.has(name)) {
        for (const arg of args) walk(arg, inMacro, false);
        return;
      }
      if (inMacro) refuse(`${name}() inside another list macro is refused: its cost has no bound`, node);
      const [variable, ...bodies] = args;
      if (variable?.op === 'id' && variable.args in VARIABLE_TYPES)
        refuse(`${variable.args} is already a variable`, variable);
      for (const body of bodies) walk(body, true, false);
      return;
    }
    if (node.op === 'call' && node.args[0] === 'matches') refuse('matches() is refused', node);
    if (node.op === 'map') {
      for (const [key] of node.args) {
        if (key.op !== 'value' || typeof key.args !== 'string') refuse('a map key must be a string literal', key);
        else if (UNSAFE_MAP_KEYS.has(key.args)) refuse(`a map key must not be ${JSON.stringify(key.args)}`, key);
      }
    }
    const has = node.op === 'call' && node.args[0] === 'has';
    for (const each of listChildren(node)) walk(each, inMacro, has || (inHas && node.op === '.'));
  };
  walk(root, false, false);
  for (const [name, offset] of reads) if (!guarded.has(name)) site.reads?.(name, offset);
  return good;
}

function findArgumentRead(node: ASTNode): string | undefined {
  if (node.op !== '.' && node.op !== '[]') return undefined;
  const [left, right] = node.args;
  if (left.op !== 'id' || left.args !== 'args') return undefined;
  if (typeof right === 'string') return right;
  return right.op === 'value' && typeof right.args === 'string' ? right.args : undefined;
}

function buildEvaluator(parsed: ParseResult, source: string): Expression {
  const quick = compileFastPath(parsed.ast);
  const meter = attachCostMeter(parsed.ast);
  const readsNow = /\bnow\b/.test(source);
  return (scope) => {
    const known = quick?.(scope);
    if (known !== undefined) return known;
    try {
      meter.reset();
      const context = readsNow && scope.now !== undefined ? { ...scope, now: new Date(scope.now) } : scope;
      return celToJson(parsed(context), meter);
    } catch (error) {
      throw new ExpressionError(`${describeEvaluationError(error)}: \`${truncateSource(source)}\``);
    }
  };
}

/** A message never quotes a value: an argument may be one that is redacted everywhere else. */
function describeEvaluationError(error: unknown): string {
  if (error instanceof ExpressionError) return error.message;
  const { code, node, summary } = error as CelError;
  if (code === 'no_such_key' && node?.op === '.' && Array.isArray(node.args)) return `no ${String(node.args[1])}`;
  if (code === 'unknown_variable' || code === 'no_such_overload' || code === 'no_matching_overload') return summary;
  if (typeof code === 'string') return code.replaceAll('_', ' ');
  return error instanceof RangeError ? 'out of bounds' : 'cannot be evaluated';
}

function truncateSource(source: string): string {
  return source.length <= 120 ? source : `${sanitize(source, 117)}...`;
}

function omitKeys(map: JsonObject, names: readonly unknown[]): JsonObject {
  return Object.fromEntries(Object.entries(map).filter(([name]) => !names.includes(name)));
}

/** `without(args, ["id"])` as it stands, for arguments the interpreter has no type for: one called `constructor`. */
function compileOmitKeys(node: ASTNode): Expression | undefined {
  if (node.op !== 'call' || node.args[0] !== 'without') return undefined;
  const [map, list] = node.args[1];
  if (map?.op !== 'id' || map.args !== 'args' || list?.op !== 'list') return undefined;
  const names = list.args.flatMap((item) => (item.op === 'value' ? [item.args] : []));
  if (names.length < list.args.length) return undefined;
  return ({ args }) => omitKeys(args ?? {}, names);
}

/** `args`, `result.id`: the commonest templates need no interpreter, and hand on exactly the value that is there. */
function compilePathAccess(source: string): Expression | undefined {
  if (!/^(?:args|result|before|observed|agent|tool|saga|run|tainted)(?:\.[A-Za-z_]\w*)*$/.test(source))
    return undefined;
  const [root, ...rest] = source.split('.') as [Exclude<ScopeVariable, 'now' | 'history'>, ...string[]];
  return (scope) => {
    let value: Json | undefined = scope[root];
    if (value === undefined) throw new ExpressionError(`Unknown variable: ${root}: \`${source}\``);
    for (const segment of rest) {
      if (!isJsonObject(value) || !Object.hasOwn(value, segment))
        throw new ExpressionError(`no ${segment}: \`${source}\``);
      value = value[segment] as Json;
    }
    return value;
  };
}
