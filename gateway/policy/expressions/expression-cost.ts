import type { ASTNode } from '@marcbachmann/cel-js';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { ExpressionError } from '../../domain/policy.ts';

/**
 * The run-time bound of an expression. CEL always ends, but not soon: over a body of 1 MiB, `args.list.exists(x,
 * args.text.contains(x))` is 10^11 steps. So every node pays for being evaluated, and for the size of what it is
 * evaluated over, out of a budget that is worth some tens of milliseconds.
 */
const MAX_EXPRESSION_COST = 1_000_000;
/** What all the expressions of a decision may cost together: many cheap ones are a policy, not an attack. */
const MAX_SHARED_COST = 5_000_000;
const COST_PER_NODE = 4;
const COST_PER_ELEMENT = 20;
const COST_PER_TIMEZONE_LOOKUP = 5_000;
/** What an expression yields is written out, sent and stored: 8 MiB of text are all of the budget. */
const OUTPUT_CHARACTERS_PER_UNIT = 8;
const JOINED_CHARACTERS_PER_UNIT = 16;
/** `exists` and `||` swallow errors, and making one costs microseconds. */
const COST_PER_ERROR = 250;

/** Made once: a macro over a long list may throw it for every element that is left. */
const COST_EXCEEDED = new ExpressionError('too costly for arguments of this size');

/** Nothing is evaluated while something else is, so one of each does for all. */
let expressionBudgetLeft = MAX_EXPRESSION_COST;
let sharedBudgetLeft = Number.POSITIVE_INFINITY;

/** Everything that is evaluated meanwhile has one purse together: many conditions add up, and everybody else waits for all. */
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

  /** Pays for reading a value through and through; stops as soon as that is more than is left. */
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

/** What the CEL library's nodes have beyond their published type; a test notices if that changes. */
interface CelNodeInternals {
  readonly meta: {
    evaluate: CelEvaluator;
    /** Where a macro is carried out instead: `map` by a node of its own, `has` and `bind` by an object. */
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

/** Call after the type check (which replaces some evaluators) and before the first evaluation. */
export function attachCostMeter(root: ASTNode): CostMeter {
  const meter = new CostMeter();
  const metered = !isLinearCost(root);
  const visit = (node: ASTNode): void => {
    if (ARITHMETIC_OPERATORS.has(node.op)) wrapEvaluator(node, (run) => (e, n, c) => assertExactNumber(run(e, n, c)));
    if (metered) {
      wrapEvaluator(node, (run) => (e, n, c) => {
        meter.spend(COST_PER_NODE);
        try {
          return run(e, n, c);
        } catch (error) {
          meter.spend(COST_PER_ERROR);
          throw error;
        }
      });
      for (const [operand, pay] of listChargedOperands(node, meter)) {
        wrapEvaluator(operand, (run) => (e, n, c) => {
          const value = run(e, n, c);
          pay(value);
          return value;
        });
      }
    }
    for (const each of listChildren(node)) visit(each);
  };
  visit(root);
  return meter;
}

function wrapEvaluator(node: ASTNode, around: (run: CelEvaluator) => CelEvaluator): void {
  const written = node as unknown as CelNodeInternals;
  const evaluable = written.meta.alternate ?? written;
  const { macro } = evaluable.meta;
  if (macro !== undefined) macro.evaluate = around(macro.evaluate);
  else evaluable.setMeta('evaluate', around(evaluable.meta.evaluate));
}

/** Nothing but looking at fields and comparing them with literals: linear in the expression, whatever the arguments. */
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
  // Lists know their length; the characters of a text are counted one by one, which takes some 10 ns each.
  const countCharacters = (value: unknown): void => meter.spend(measureText(value) >> 2);
  if (DEEP_OPERATORS.has(node.op)) return listChildren(node).map((child) => [child, deep]);
  if (node.op === 'call') {
    const [name, args] = node.args;
    if (name === 'has') return [];
    if (name === 'size') return args.map((arg) => [arg, countCharacters]);
    // The library's duration parser backtracks: the square of the length.
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
  // Paid before the loop starts: nothing stops `exists` from trying every element that is left.
  if (LIST_MACROS.has(name)) return [[receiver, (value) => meter.spend(COST_PER_ELEMENT * countElements(value))]];
  return [receiver, ...args].map((each) => [each, deep]);
}

const LIST_MACROS = new Set(['all', 'exists', 'exists_one', 'map', 'filter']);

/** The library evaluates operands from the last to the first, so the receiver is the one that knows both lengths. */
function chargeSearch(
  name: string,
  receiver: ASTNode,
  needle: ASTNode,
  meter: CostMeter,
): [ASTNode, (value: unknown) => void][] {
  let needed = 0;
  const payForNeedle = (value: unknown): void => {
    needed = measureText(value);
  };
  const payForBoth = (value: unknown): void => {
    const length = measureText(value);
    meter.spend(name === 'split' ? length : length >> 6);
    meter.spend((length * needed) / 64);
  };
  return [
    [needle, payForNeedle],
    [receiver, payForBoth],
  ];
}

/** A short list of short texts is long when what stands between them is: as in `search`, the receiver knows both. */
function chargeJoin(
  receiver: ASTNode,
  between: ASTNode | undefined,
  meter: CostMeter,
): [ASTNode, (value: unknown) => void][] {
  let gap = 0;
  const payForAll = (value: unknown): void => {
    meter.spendForValue(value);
    meter.spend((countElements(value) * gap) / JOINED_CHARACTERS_PER_UNIT);
    if (Array.isArray(value)) for (const item of value) meter.spend(measureText(item) / JOINED_CHARACTERS_PER_UNIT);
  };
  if (between === undefined) return [[receiver, payForAll]];
  const note = (value: unknown): void => {
    gap = measureText(value);
  };
  return [
    [between, note],
    [receiver, payForAll],
  ];
}

function countElements(value: unknown): number {
  if (Array.isArray(value)) return value.length;
  return isJsonObject(value) ? Object.keys(value).length : 1;
}

function measureText(value: unknown): number {
  return typeof value === 'string' ? value.length : 1;
}

/** The nodes right below one, as they were written (macros not expanded). */
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
  if (!Number.isFinite(value)) throw new ExpressionError('not a finite number');
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) throw new ExpressionError('loses precision');
  return value;
}

/** A CEL value as JSON: ints become numbers if they are exact, times become ISO strings. */
export function celToJson(value: unknown, meter: CostMeter): Json {
  switch (typeof value) {
    case 'boolean':
      return value;
    case 'string':
      meter.spend(value.length / OUTPUT_CHARACTERS_PER_UNIT);
      return value;
    case 'number':
      if (!Number.isFinite(value)) throw new ExpressionError('not a finite number');
      return value;
    case 'bigint': {
      const number = Number(value);
      if (!Number.isSafeInteger(number)) throw new ExpressionError('an integer is too large to be exact');
      return number;
    }
    case 'object':
      return celObjectToJson(value, meter);
    default:
      throw new ExpressionError('not a JSON value');
  }
}

function celObjectToJson(value: object | null, meter: CostMeter): Json {
  if (value === null) return null;
  meter.spend(1);
  if (Array.isArray(value)) {
    meter.spend(value.length);
    return value.map((item) => celToJson(item, meter));
  }
  // CEL's uint is an object around a bigint.
  const inner: unknown = value.valueOf();
  if (typeof inner === 'bigint') return celToJson(inner, meter);
  if (value instanceof Date) return value.toISOString();
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) throw new ExpressionError('not a JSON value');
  const result: Record<string, Json> = {};
  for (const [key, item] of Object.entries(value)) {
    meter.spend(1 + key.length / OUTPUT_CHARACTERS_PER_UNIT);
    result[key] = celToJson(item, meter);
  }
  return result;
}
