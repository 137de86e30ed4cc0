import type { ASTNode } from '@marcbachmann/cel-js';
import { isObject, type Json } from '../domain/json.ts';
import type { Scope } from '../domain/policy.ts';

/**
 * Most conditions compare arguments with literals. These need no interpreter: an agent with 200 such rules is judged in
 * 11 µs instead of 80. Whatever is the least bit unusual (a field that is missing, types that differ) is `undefined`,
 * and the interpreter says what it means: the shortcut never has an opinion of its own.
 */
export type Shortcut = (scope: Scope) => boolean | undefined;
type Read = (scope: Scope) => Json | undefined;

export function shortcut(node: ASTNode): Shortcut | undefined {
  switch (node.op) {
    case '&&':
    case '||':
      return both(node.op === '||', shortcut(node.args[0]), shortcut(node.args[1]));
    case '!_': {
      const inner = shortcut(node.args);
      return inner && ((scope) => negate(inner(scope)));
    }
    case '==':
    case '!=': {
      const equal = equals(node.args[0], node.args[1]);
      return node.op === '==' ? equal : equal && ((scope) => negate(equal(scope)));
    }
    case '<':
    case '<=':
    case '>':
    case '>=':
      return ordered(node.op, node.args[0], node.args[1]);
    default:
      return undefined;
  }
}

function negate(value: boolean | undefined): boolean | undefined {
  return value === undefined ? undefined : !value;
}

/** `decides` is the value of the left side that ends it: true for or, false for and. */
function both(decides: boolean, left: Shortcut | undefined, right: Shortcut | undefined): Shortcut | undefined {
  if (left === undefined || right === undefined) return undefined;
  return (scope) => {
    const first = left(scope);
    return first === undefined || first === decides ? first : right(scope);
  };
}

function equals(left: ASTNode, right: ASTNode): Shortcut | undefined {
  const read = reader(left);
  const literal = literalOf(right);
  if (read === undefined || literal === undefined) return undefined;
  return (scope) => {
    const value = read(scope);
    return typeof value === typeof literal ? value === literal : undefined;
  };
}

const ORDERS = {
  '<': (a: number, b: number) => a < b,
  '<=': (a: number, b: number) => a <= b,
  '>': (a: number, b: number) => a > b,
  '>=': (a: number, b: number) => a >= b,
} as const;

function ordered(op: keyof typeof ORDERS, left: ASTNode, right: ASTNode): Shortcut | undefined {
  const read = reader(left);
  const literal = literalOf(right);
  if (read === undefined || typeof literal !== 'number') return undefined;
  const compare = ORDERS[op];
  return (scope) => {
    const value = read(scope);
    return typeof value === 'number' ? compare(value, literal) : undefined;
  };
}

function literalOf(node: ASTNode): string | number | boolean | undefined {
  if (node.op !== 'value') return undefined;
  const value = node.args;
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : undefined;
  return typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean' ? value : undefined;
}

/** `args.a.b`: the value there, or undefined when there is none. */
function reader(node: ASTNode): Read | undefined {
  const path: string[] = [];
  let at = node;
  while (at.op === '.') {
    path.unshift(at.args[1]);
    at = at.args[0];
  }
  if (at.op !== 'id' || at.args !== 'args' || path.length === 0) return undefined;
  return (scope) => {
    let value: Json | undefined = scope.args;
    for (const key of path) {
      if (!isObject(value) || !Object.hasOwn(value, key)) return undefined;
      value = value[key];
    }
    return value;
  };
}
