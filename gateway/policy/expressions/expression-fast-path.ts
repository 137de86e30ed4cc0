import type { ASTNode } from '@marcbachmann/cel-js';
import { isJsonObject, type Json } from '../../domain/json.ts';
import type { ExpressionScope } from '../../domain/policy.ts';

/**
 * Most conditions compare arguments with literals. These need no interpreter: an agent with 200 such rules is judged in
 * 11 µs instead of 80. Whatever is the least bit unusual (a field that is missing, types that differ) is `undefined`,
 * and the interpreter says what it means: the shortcut never has an opinion of its own.
 */
export type FastPath = (scope: ExpressionScope) => boolean | undefined;
type ArgumentReader = (scope: ExpressionScope) => Json | undefined;

export function compileFastPath(node: ASTNode): FastPath | undefined {
  switch (node.op) {
    case '&&':
    case '||':
      return compileLogical(node.op === '||', compileFastPath(node.args[0]), compileFastPath(node.args[1]));
    case '!_': {
      const inner = compileFastPath(node.args);
      return inner && ((scope) => negate(inner(scope)));
    }
    case '==':
    case '!=': {
      const equal = compileEquality(node.args[0], node.args[1]);
      return node.op === '==' ? equal : equal && ((scope) => negate(equal(scope)));
    }
    case '<':
    case '<=':
    case '>':
    case '>=':
      return compileComparison(node.op, node.args[0], node.args[1]);
    default:
      return undefined;
  }
}

function negate(value: boolean | undefined): boolean | undefined {
  return value === undefined ? undefined : !value;
}

/** `decides` is the value of the left side that ends it: true for or, false for and. */
function compileLogical(
  decides: boolean,
  left: FastPath | undefined,
  right: FastPath | undefined,
): FastPath | undefined {
  if (left === undefined || right === undefined) return undefined;
  return (scope) => {
    const first = left(scope);
    return first === undefined || first === decides ? first : right(scope);
  };
}

function compileEquality(left: ASTNode, right: ASTNode): FastPath | undefined {
  const read = compileArgumentReader(left);
  const literal = readLiteral(right);
  if (read === undefined || literal === undefined) return undefined;
  return (scope) => {
    const value = read(scope);
    return typeof value === typeof literal ? value === literal : undefined;
  };
}

const COMPARATORS = {
  '<': (a: number, b: number) => a < b,
  '<=': (a: number, b: number) => a <= b,
  '>': (a: number, b: number) => a > b,
  '>=': (a: number, b: number) => a >= b,
} as const;

function compileComparison(op: keyof typeof COMPARATORS, left: ASTNode, right: ASTNode): FastPath | undefined {
  const read = compileArgumentReader(left);
  const literal = readLiteral(right);
  if (read === undefined || typeof literal !== 'number') return undefined;
  const compare = COMPARATORS[op];
  return (scope) => {
    const value = read(scope);
    return typeof value === 'number' ? compare(value, literal) : undefined;
  };
}

function readLiteral(node: ASTNode): string | number | boolean | undefined {
  if (node.op !== 'value') return undefined;
  const value = node.args;
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : undefined;
  return typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean' ? value : undefined;
}

/** `args.a.b`: the value there, or undefined when there is none. */
function compileArgumentReader(node: ASTNode): ArgumentReader | undefined {
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
      if (!isJsonObject(value) || !Object.hasOwn(value, key)) return undefined;
      value = value[key];
    }
    return value;
  };
}
