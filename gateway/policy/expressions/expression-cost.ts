import type { ASTNode } from '@marcbachmann/cel-js';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';

/**
 * The cost budget of one expression. CEL always terminates, but may take long: `args.list.exists(x, args.text.contains(x))` over a
 * body of 1 MiB takes 10^11 steps. So every node spends for its evaluation and for the size of its operands, out of a budget
 * that is worth some tens of milliseconds.
 */
const MAX_EXPRESSION_COST = 1_000_000;
/** The budget of all expressions of one decision. It is larger, because a policy may have many cheap expressions. */
const MAX_SHARED_COST = 5_000_000;
const COST_PER_NODE = 4;
const COST_PER_ELEMENT = 20;
const COST_PER_TIMEZONE_LOOKUP = 5_000;
/** The result of an expression is serialized, sent and stored. 8 MiB of text spend the whole budget. */
const OUTPUT_CHARACTERS_PER_UNIT = 8;
const JOINED_CHARACTERS_PER_UNIT = 16;
/** Errors cost extra: creating one takes microseconds, and `exists` and `||` swallow many. */
const COST_PER_ERROR = 250;

/** Created once, because a macro over a long list may throw it for every remaining element. */
const COST_EXCEEDED = new ExpressionError('the evaluation is too costly for arguments of this size');

/** Evaluation is synchronous, so one counter of each kind is enough. */
let expressionBudgetLeft = MAX_EXPRESSION_COST;
let sharedBudgetLeft = Number.POSITIVE_INFINITY;

/** Runs work whose expressions share one budget, because the conditions of a decision add up while all other requests wait. */
export function withSharedBudget<T>(work: () => T): T {
  sharedBudgetLeft = MAX_SHARED_COST;
  try {
    return work();
  } finally {
    sharedBudgetLeft = Number.POSITIVE_INFINITY;
  }
}

export class CostMeter {
  reset(): void {
    expressionBudgetLeft = MAX_EXPRESSION_COST;
  }

  spend(cost: number): void {
    expressionBudgetLeft -= cost;
    sharedBudgetLeft -= cost;
    if (expressionBudgetLeft < 0 || sharedBudgetLeft < 0) throw COST_EXCEEDED;
  }

  /** Spends for reading a whole value. Throws as soon as the budget is exceeded. */
  spendForValue(value: unknown): void {
    if (typeof value === 'string') this.spend(1 + (value.length >> 6));
    else if (Array.isArray(value)) {
      this.spend(1);
      for (const item of value) this.spendForValue(item);
    } else if (isJsonObject(value)) {
      this.spend(1);
      for (const key in value) this.spendForValue(value[key]);
    } else this.spend(1);
  }
}

/** Members of the CEL library's nodes that its types do not publish. A test fails if they change. */
interface CelNodeInternals {
  readonly meta: {
    evaluate: CelEvaluator;
    /** A macro is not evaluated by its own node: `map` has an alternate node, `has` and `bind` have a `macro` object. */
    readonly alternate?: CelNodeInternals;
    readonly macro?: { evaluate: CelEvaluator };
  };
  setMeta(key: 'evaluate', value: CelEvaluator): void;
}
type CelEvaluator = (evaluator: unknown, node: unknown, context: unknown) => unknown;

const ARITHMETIC_OPERATORS = new Set(['+', '-', '*', '/', '%']);
const DEEP_OPERATORS = new Set(['==', '!=', 'in', '+']);
/** Functions whose worst case is the product of the lengths of the two strings. */
const SUBSTRING_FUNCTIONS = new Set(['contains', 'indexOf', 'lastIndexOf', 'split']);

/** Must be called after the type check, which replaces some evaluators, and before the first evaluation. */
export function attachCostMeter(root: ASTNode): CostMeter {
  const meter = new CostMeter();
  const isMetered = !isLinearCost(root);
  const visit = (node: ASTNode): void => {
    if (ARITHMETIC_OPERATORS.has(node.op)) wrapEvaluator(node, (run) => (e, n, c) => assertExactNumber(run(e, n, c)));
    if (isMetered) {
      wrapEvaluator(node, (run) => (e, n, c) => {
        meter.spend(COST_PER_NODE);
        try {
          return run(e, n, c);
        } catch (error) {
          meter.spend(COST_PER_ERROR);
          throw error;
        }
      });
      for (const [operand, charge] of listChargedOperands(node, meter)) {
        wrapEvaluator(operand, (run) => (e, n, c) => {
          const value = run(e, n, c);
          charge(value);
          return value;
        });
      }
    }
    for (const child of listChildren(node)) visit(child);
  };
  visit(root);
  return meter;
}

/** The values whose members `has` may look for: as CEL specifies, or also null. */
export type HasOwner = 'object' | 'object_or_null';

/**
 * Makes `has(a.b)` fail when `a` is text, a list or a number. The library yields false, so an HTML page would be an answer without
 * errors. Must be called after the type check.
 */
export function requireObjectsInHas(root: ASTNode, owners: HasOwner): void {
  const [name, args] = root.op === 'call' ? root.args : [];
  if (name !== 'has') {
    for (const child of listChildren(root)) requireObjectsInHas(child, owners);
    return;
  }
  const members: string[] = [];
  let owner = args?.[0];
  while (owner?.op === '.') {
    members.unshift(owner.args[1]);
    owner = owner.args[0];
  }
  const variable = owner;
  if (variable === undefined) return;
  wrapEvaluator(root, (run) => (evaluator, node, context) => {
    // The library does not prepare the nodes between the variable and the last member for an evaluation of their own.
    let value = (evaluator as CelEvaluatorInternals).run(variable, context);
    for (const [depth, member] of members.entries()) {
      if (value === null && owners === 'object_or_null') break;
      if (!isJsonObject(value)) throw new ExpressionError(`${member} is read of a value that is not an object`);
      if (depth < members.length - 1 && !Object.hasOwn(value, member))
        throw new ExpressionError(`${member} is missing`);
      value = value[member];
    }
    return run(evaluator, node, context);
  });
}

interface CelEvaluatorInternals {
  run(node: ASTNode, context: unknown): unknown;
}

function wrapEvaluator(node: ASTNode, around: (run: CelEvaluator) => CelEvaluator): void {
  const written = node as unknown as CelNodeInternals;
  const evaluable = written.meta.alternate ?? written;
  const { macro } = evaluable.meta;
  if (macro !== undefined) macro.evaluate = around(macro.evaluate);
  else evaluable.setMeta('evaluate', around(evaluable.meta.evaluate));
}

/** Whether an expression only reads fields and compares them with literals. Its cost does not depend on the arguments. */
function isLinearCost(node: ASTNode): boolean {
  switch (node.op) {
    case 'value':
    case 'id':
      return true;
    case '==':
    case '!=':
      return node.args.some((side) => side.op === 'value') && node.args.every(isLinearCost);
    case 'in':
      return (
        node.args[1].op === 'list' &&
        node.args[1].args.every((item) => item.op === 'value') &&
        isLinearCost(node.args[0])
      );
    case '.':
    case '!_':
    case '-_':
    case '&&':
    case '||':
    case '?:':
    case '<':
    case '<=':
    case '>':
    case '>=':
    case '-':
    case '*':
    case '/':
    case '%':
      return listChildren(node).every(isLinearCost);
    case 'call':
      return node.args[0] === 'has';
    default:
      return false;
  }
}

function listChargedOperands(node: ASTNode, meter: CostMeter): [ASTNode, (value: unknown) => void][] {
  const deep = (value: unknown): void => meter.spendForValue(value);
  // The size of a list is known, but the characters of a text are counted one by one, at some 10 ns each.
  const countCharacters = (value: unknown): void => meter.spend(measureText(value) >> 2);
  if (DEEP_OPERATORS.has(node.op)) return listChildren(node).map((child) => [child, deep]);
  if (node.op === 'call') {
    const [name, args] = node.args;
    if (name === 'has') return [];
    if (name === 'size') return args.map((arg) => [arg, countCharacters]);
    // The library's duration parser backtracks and takes quadratic time.
    if (name === 'duration') return args.map((arg) => [arg, (value) => meter.spend(measureText(value) ** 2)]);
    return args.map((arg) => [arg, deep]);
  }
  if (node.op !== 'rcall') return [];
  const [name, receiver, args] = node.args;
  if (name === 'size') return [[receiver, countCharacters]];
  if (SUBSTRING_FUNCTIONS.has(name) && args[0] !== undefined) return chargeSearch(name, receiver, args[0], meter);
  if (name.startsWith('get') && args.length > 0) return [[receiver, () => meter.spend(COST_PER_TIMEZONE_LOOKUP)]];
  if (name === 'join') return chargeJoin(receiver, args[0], meter);
  if (name === 'bind') return [];
  // Spent before the loop starts, because `exists` swallows errors and tries every remaining element.
  if (LIST_MACROS.has(name)) return [[receiver, (value) => meter.spend(COST_PER_ELEMENT * countElements(value))]];
  return [receiver, ...args].map((each) => [each, deep]);
}

const LIST_MACROS = new Set(['all', 'exists', 'exists_one', 'map', 'filter']);

/** The library evaluates operands from last to first, so both lengths are known when the receiver is evaluated. */
function chargeSearch(
  name: string,
  receiver: ASTNode,
  needle: ASTNode,
  meter: CostMeter,
): [ASTNode, (value: unknown) => void][] {
  let needleLength = 0;
  const recordNeedle = (value: unknown): void => {
    needleLength = measureText(value);
  };
  const spendForBoth = (value: unknown): void => {
    const length = measureText(value);
    meter.spend(name === 'split' ? length : length >> 6);
    meter.spend((length * needleLength) / 64);
  };
  return [
    [needle, recordNeedle],
    [receiver, spendForBoth],
  ];
}

/** A long separator makes the joined text long. As in `chargeSearch`, both lengths are known when the receiver is evaluated. */
function chargeJoin(
  receiver: ASTNode,
  separator: ASTNode | undefined,
  meter: CostMeter,
): [ASTNode, (value: unknown) => void][] {
  let separatorLength = 0;
  const spendForAll = (value: unknown): void => {
    meter.spendForValue(value);
    meter.spend((countElements(value) * separatorLength) / JOINED_CHARACTERS_PER_UNIT);
    if (Array.isArray(value)) for (const item of value) meter.spend(measureText(item) / JOINED_CHARACTERS_PER_UNIT);
  };
  if (separator === undefined) return [[receiver, spendForAll]];
  const recordSeparator = (value: unknown): void => {
    separatorLength = measureText(value);
  };
  return [
    [separator, recordSeparator],
    [receiver, spendForAll],
  ];
}

function countElements(value: unknown): number {
  if (Array.isArray(value)) return value.length;
  return isJsonObject(value) ? Object.keys(value).length : 1;
}

function measureText(value: unknown): number {
  return typeof value === 'string' ? value.length : 1;
}

/** The direct children of a node as written, with macros not expanded. */
export function listChildren(node: ASTNode): ASTNode[] {
  const nodes: ASTNode[] = [];
  const collect = (value: unknown): void => {
    if (Array.isArray(value)) for (const each of value) collect(each);
    else if (typeof value === 'object' && value !== null && 'op' in value) nodes.push(value as ASTNode);
  };
  collect(node.args);
  return nodes;
}

function assertExactNumber(value: unknown): unknown {
  if (typeof value !== 'number') return value;
  if (!Number.isFinite(value)) throw new ExpressionError('a result is not a finite number');
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new ExpressionError('a result loses precision');
  return value;
}

/** Converts a CEL value to JSON. Ints must be exact as numbers; times become ISO strings. */
export function celToJson(value: unknown, meter: CostMeter): Json {
  switch (typeof value) {
    case 'boolean':
      return value;
    case 'string':
      meter.spend(value.length / OUTPUT_CHARACTERS_PER_UNIT);
      return value;
    case 'number':
      if (!Number.isFinite(value)) throw new ExpressionError('a result is not a finite number');
      return value;
    case 'bigint': {
      const number = Number(value);
      if (!Number.isSafeInteger(number)) throw new ExpressionError('an integer is too large to be exact');
      return number;
    }
    case 'object':
      return celObjectToJson(value, meter);
    default:
      throw new ExpressionError('a result is not a JSON value');
  }
}

function celObjectToJson(value: object | null, meter: CostMeter): Json {
  if (value === null) return null;
  meter.spend(1);
  if (Array.isArray(value)) {
    meter.spend(value.length);
    return value.map((item) => celToJson(item, meter));
  }
  // A CEL uint is an object that wraps a bigint.
  const inner: unknown = value.valueOf();
  if (typeof inner === 'bigint') return celToJson(inner, meter);
  if (value instanceof Date) return value.toISOString();
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) throw new ExpressionError('a result is not a JSON value');
  const result: Record<string, Json> = {};
  for (const [key, item] of Object.entries(value)) {
    meter.spend(1 + key.length / OUTPUT_CHARACTERS_PER_UNIT);
    result[key] = celToJson(item, meter);
  }
  return result;
}
