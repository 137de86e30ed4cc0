import type { ASTNode, ParseResult } from '@marcbachmann/cel-js';
import { Environment } from '@marcbachmann/cel-js';
import type { HistoryQuery } from '../../domain/calls/history.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { type Expression, ExpressionError, type ExpressionScope } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { didYouMean, endSentence, formatList } from '../faults.ts';
import { attachCostMeter, celToJson, type HasOwner, listChildren, requireObjectsInHas } from './expression-cost.ts';
import { compileFastPath } from './expression-fast-path.ts';
import { parseHistoryQuery, registerHistory } from './history-functions.ts';

/**
 * A variable of CEL expressions in policies. Expressions are parsed and type-checked at load, and their cost is bounded. JSON
 * numbers are doubles and literals such as `5` are ints; arithmetic between the two works and never loses precision silently.
 */
export type ScopeVariable = keyof ExpressionScope;

/** How an expression is compiled: its variables, and the receivers of what the compiler finds. */
export interface CompileOptions {
  readonly variables: readonly ScopeVariable[];
  /** The evaluation fails when `has` looks into any other value. Default: `has` yields false for values without members. */
  readonly hasOwner?: HasOwner;
  /** `offset` is a position inside the expression or string. */
  reportFault(message: string, offset?: number): void;
  /** Receives each argument that the expression reads without a `has(args.…)` for it. */
  reportArgumentRead?(argument: string, offset: number): void;
  /** Receives each query of `history` and `tainted`, where these are variables. */
  reportFactQuery?(query: HistoryQuery | 'taint', offset: number): void;
}

const CEL_LIMITS = { maxAstNodes: 400, maxDepth: 40, maxListElements: 200, maxMapEntries: 100, maxCallArguments: 8 };
const MAX_EXPRESSION_CHARACTERS = 4096;

const VARIABLE_TYPES: Readonly<Record<ScopeVariable, string>> = {
  args: 'map',
  result: 'dyn',
  before: 'dyn',
  observed: 'dyn',
  status: 'int',
  agent: 'string',
  tool: 'string',
  saga: 'dyn',
  run: 'dyn',
  now: 'google.protobuf.Timestamp',
  history: 'History',
  tainted: 'bool',
};

/** CEL types of expressions that may yield a boolean or a number. */
const BOOLEAN_TYPES = new Set(['bool', 'dyn']);
const NUMBER_TYPES = new Set(['int', 'uint', 'double', 'dyn']);

const baseEnvironment = registerHistory(
  registerMapFunctions(
    registerMixedArithmetic(new Environment({ homogeneousAggregateLiterals: false, limits: CEL_LIMITS })),
  ),
);
const environmentsByVariables = new Map<string, Environment>();

function getEnvironment(variables: readonly ScopeVariable[]): Environment {
  const id = [...variables].sort().join();
  let env = environmentsByVariables.get(id);
  if (env === undefined) {
    env = baseEnvironment.clone();
    for (const name of variables) env.registerVariable(name, VARIABLE_TYPES[name]);
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

/** Registers `without(args, ["id"])`, because a body is often all arguments except those in the path. */
function registerMapFunctions(env: Environment): Environment {
  env.registerFunction('without(map, list): map', (map: JsonObject, names: readonly unknown[]) => omitKeys(map, names));
  return env;
}

function toExactNumber(value: bigint): number {
  const number = Number(value);
  if (!Number.isSafeInteger(number)) throw new ExpressionError('an integer is too large to be exact');
  return number;
}

/** Compiles an expression that may yield any value. */
export function compileExpression(source: string, options: CompileOptions): Expression {
  return compileTyped(source, options, undefined, '');
}

/** Compiles a condition, which must yield a boolean; other values are not converted. */
export function compileCondition(source: string, options: CompileOptions): Expression<boolean> {
  const evaluate = compileTyped(source, options, BOOLEAN_TYPES, 'true or false');
  return (scope) => {
    const value = evaluate(scope);
    if (typeof value !== 'boolean')
      throw new ExpressionError(`\`${truncateSource(source)}\` does not yield true or false`);
    return value;
  };
}

export function compileNumber(source: string, options: CompileOptions): Expression<number> {
  const evaluate = compileTyped(source, options, NUMBER_TYPES, 'a number');
  return (scope) => {
    const value = evaluate(scope);
    if (typeof value !== 'number') throw new ExpressionError(`\`${truncateSource(source)}\` does not yield a number`);
    return value;
  };
}

function compileTyped(
  source: string,
  options: CompileOptions,
  expectedTypes: ReadonlySet<string> | undefined,
  expected: string,
): Expression {
  const parsed = parseExpression(source, options);
  if (parsed === undefined || !analyzeAst(parsed.ast, options)) return failingExpression;
  const checked = parsed.check();
  if (!checked.valid) {
    const error = checked.error as CelError;
    options.reportFault(describeCheckError(error, options), error.range?.start ?? 0);
    return failingExpression;
  }
  if (expectedTypes !== undefined && !expectedTypes.has(checked.type ?? 'dyn')) {
    options.reportFault(`The expression must yield ${expected} (got ${checked.type}).`, 0);
    return failingExpression;
  }
  return compilePathAccess(source) ?? compileOmitKeys(parsed.ast) ?? buildEvaluator(parsed, source, options.hasOwner);
}

/** Replaces an expression that did not compile, so that loading continues and finds the next fault. */
const failingExpression: Expression = () => {
  throw new ExpressionError('the expression did not compile');
};

interface CelError extends Error {
  readonly code: string;
  readonly summary: string;
  readonly range?: { readonly start: number };
  readonly node?: { readonly op?: string; readonly args?: unknown };
}

function parseExpression(source: string, options: CompileOptions): ParseResult | undefined {
  if (source.length > MAX_EXPRESSION_CHARACTERS) {
    const message = `The expression must have at most ${MAX_EXPRESSION_CHARACTERS} characters (got ${source.length}).`;
    options.reportFault(message);
    return undefined;
  }
  if (source.trim() === '') {
    options.reportFault('The expression is empty. Write a CEL expression.');
    return undefined;
  }
  try {
    return getEnvironment(options.variables).parse(source);
  } catch (error) {
    const { summary, message, range } = error as CelError;
    const problem = describeParseError(summary ?? message);
    options.reportFault(endSentence(`This is not a valid CEL expression: ${problem}`), range?.start ?? 0);
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

/** Translates the token names of the CEL library. */
function describeParseError(summary: string): string {
  const [, token] = /^(?:Unexpected token: EOF|Expected (\w+), got EOF)$/.exec(summary) ?? [undefined, null];
  if (token === null) return summary;
  return token === undefined ? 'it ends too early' : `it ends too early, before ${TOKEN_NAMES[token] ?? token}`;
}

function describeCheckError(error: CelError, options: CompileOptions): string {
  if (error.code !== 'unknown_variable')
    return endSentence(`This is not a valid CEL expression: ${error.summary ?? error.message}`);
  const name = String(error.node?.args);
  if (name === 'env' || name === 'file') {
    return `${name} can be used only for credentials: in url, headers, env and command of an upstream, in keys, jwt and voters.`;
  }
  const near = didYouMean(name, options.variables);
  return `Unknown variable ${JSON.stringify(name)}.${near} Known variables: ${formatList(options.variables)}.`;
}

const MATCHES_FAULT =
  'matches() is not allowed, because a regular expression can stall the gateway. Use contains(), startsWith() or endsWith().';
const LIST_MACROS = new Set(['all', 'exists', 'exists_one', 'map', 'filter']);
/** Keys that the CEL library silently drops from a map literal. */
const UNSAFE_MAP_KEYS = new Set(['__proto__', 'constructor', 'prototype']);

/** Walks the tree once: refuses constructs of unbounded cost, and reports the arguments and facts that are read. */
function analyzeAst(root: ASTNode, options: CompileOptions): boolean {
  let isAccepted = true;
  const guarded = new Set<string>();
  const reads: [string, number][] = [];
  const refuse = (message: string, node: ASTNode): void => {
    isAccepted = false;
    options.reportFault(message, node.start);
  };
  const hasHistory = options.variables.includes('history');
  const walk = (node: ASTNode, inMacro: boolean, inHas: boolean): void => {
    const query = hasHistory ? parseHistoryQuery(node) : undefined;
    if (query !== undefined) {
      if (typeof query === 'string') refuse(query, node);
      else options.reportFactQuery?.(query, node.start);
      return;
    }
    if (node.op === 'id' && node.args === 'tainted') options.reportFactQuery?.('taint', node.start);
    const argument = findArgumentRead(node);
    if (argument !== undefined) {
      if (inHas) guarded.add(argument);
      else reads.push([argument, node.start]);
    }
    if (node.op === 'rcall') {
      const [name, receiver, args] = node.args;
      if (name === 'matches') refuse(MATCHES_FAULT, node);
      walk(receiver, inMacro, false);
      if (!LIST_MACROS.has(name)) {
        for (const arg of args) walk(arg, inMacro, false);
        return;
      }
      if (inMacro)
        refuse(`${name}() must not be used inside another list macro, because its cost would have no bound.`, node);
      const [variable, ...bodies] = args;
      if (variable?.op === 'id' && variable.args in VARIABLE_TYPES)
        refuse(`The name ${variable.args} is already a variable. Choose another name.`, variable);
      for (const body of bodies) walk(body, true, false);
      return;
    }
    if (node.op === 'call' && node.args[0] === 'matches') refuse(MATCHES_FAULT, node);
    if (node.op === 'map') {
      for (const [key] of node.args) {
        if (key.op !== 'value' || typeof key.args !== 'string') refuse('A map key must be a string literal.', key);
        else if (UNSAFE_MAP_KEYS.has(key.args)) refuse(`A map key must not be ${JSON.stringify(key.args)}.`, key);
      }
    }
    const isHas = node.op === 'call' && node.args[0] === 'has';
    for (const child of listChildren(node)) walk(child, inMacro, isHas || (inHas && node.op === '.'));
  };
  walk(root, false, false);
  for (const [name, offset] of reads) if (!guarded.has(name)) options.reportArgumentRead?.(name, offset);
  return isAccepted;
}

function findArgumentRead(node: ASTNode): string | undefined {
  if (node.op !== '.' && node.op !== '[]') return undefined;
  const [left, right] = node.args;
  if (left.op !== 'id' || left.args !== 'args') return undefined;
  if (typeof right === 'string') return right;
  return right.op === 'value' && typeof right.args === 'string' ? right.args : undefined;
}

function buildEvaluator(parsed: ParseResult, source: string, hasOwner?: HasOwner): Expression {
  const fastPath = compileFastPath(parsed.ast);
  const meter = attachCostMeter(parsed.ast);
  if (hasOwner !== undefined) requireObjectsInHas(parsed.ast, hasOwner);
  const readsNow = /\bnow\b/.test(source);
  const readsStatus = /\bstatus\b/.test(source);
  return (scope) => {
    const result = fastPath?.(scope);
    if (result !== undefined) return result;
    try {
      meter.reset();
      const { now, status } = scope;
      const context = {
        ...scope,
        ...(readsNow && now !== undefined ? { now: new Date(now) } : {}),
        ...(readsStatus && status !== undefined ? { status: BigInt(status) } : {}),
      };
      return celToJson(parsed(context), meter);
    } catch (error) {
      throw new ExpressionError(`${describeEvaluationError(error)} in \`${truncateSource(source)}\``);
    }
  };
}

/** Never quotes a value, because an argument may be redacted elsewhere. */
function describeEvaluationError(error: unknown): string {
  if (error instanceof ExpressionError) return error.message;
  const { code, node, summary } = error as CelError;
  if (code === 'no_such_key' && node?.op === '.' && Array.isArray(node.args))
    return `${String(node.args[1])} is missing`;
  if (code === 'unknown_variable' || code === 'no_such_overload' || code === 'no_matching_overload') return summary;
  if (typeof code === 'string') return code.replaceAll('_', ' ');
  return error instanceof RangeError ? 'a value is out of bounds' : 'the evaluation failed';
}

function truncateSource(source: string): string {
  return source.length <= 120 ? source : `${sanitize(source, 117)}...`;
}

function omitKeys(map: JsonObject, names: readonly unknown[]): JsonObject {
  return Object.fromEntries(Object.entries(map).filter(([name]) => !names.includes(name)));
}

/** Evaluates `without(args, ["id"])` itself, because the interpreter fails on an argument named `constructor`. */
function compileOmitKeys(node: ASTNode): Expression | undefined {
  if (node.op !== 'call' || node.args[0] !== 'without') return undefined;
  const [map, list] = node.args[1];
  if (map?.op !== 'id' || map.args !== 'args' || list?.op !== 'list') return undefined;
  const names = list.args.flatMap((item) => (item.op === 'value' ? [item.args] : []));
  if (names.length < list.args.length) return undefined;
  return ({ args }) => omitKeys(args ?? {}, names);
}

/** Evaluates paths such as `args` and `result.id` without the interpreter. Yields the very value at the path. */
function compilePathAccess(source: string): Expression | undefined {
  if (!/^(?:args|result|before|observed|agent|tool|saga|run|tainted)(?:\.[A-Za-z_]\w*)*$/.test(source))
    return undefined;
  const [root, ...rest] = source.split('.') as [Exclude<ScopeVariable, 'now' | 'history'>, ...string[]];
  return (scope) => {
    let value: Json | undefined = scope[root];
    if (value === undefined) throw new ExpressionError(`${root} is unknown in \`${source}\``);
    for (const segment of rest) {
      if (!isJsonObject(value) || !Object.hasOwn(value, segment))
        throw new ExpressionError(`${segment} is missing in \`${source}\``);
      value = value[segment] as Json;
    }
    return value;
  };
}
