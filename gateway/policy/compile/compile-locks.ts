import { findLockNameFault, MAX_LOCKS } from '../../domain/controls/lock.ts';
import type { Json } from '../../domain/json.ts';
import { type Expression, ExpressionError, type LockSpec } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { compileExpression, type ScopeVariable } from '../expressions/compile-expression.ts';
import { splitTemplate, type TemplateCompileOptions } from '../expressions/compile-template.ts';
import type { LockDeclaration } from '../policy-file-schema.ts';

export const LOCK_VARIABLES: readonly ScopeVariable[] = ['args', 'agent', 'saga', 'run'];

/**
 * Compiles a lock of a tool. In a name with text around `${expr}`, a value fills one segment: its slashes and `*` are encoded. A
 * list yields one name for each item. A name that is one `${expr}` is the value itself, and its slashes and `*` count.
 */
export function compileLock(lock: LockDeclaration, options: TemplateCompileOptions): LockSpec {
  const { key, mode = 'exclusive', for: scope = 'call' } = typeof lock === 'string' ? { key: lock } : lock;
  return { keys: compileLockKeys(key, options), mode, for: scope };
}

function compileLockKeys(template: string, options: TemplateCompileOptions): Expression<string[]> {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    options.reportFault(parts.fault, [], parts.offset);
    return () => [];
  }
  const pieces = parts.map((part) => ('text' in part ? part.text : compileLockPart(part, options)));
  const [only] = pieces;
  if (pieces.length === 1 && typeof only === 'function')
    return (scope) => toTextList(only(scope), template).map(assertLockName);
  // A sample value replaces each expression, so that faults of the text itself are found at load.
  const fault = findLockNameFault(pieces.map((piece) => (typeof piece === 'string' ? piece : 'x')).join(''));
  if (fault !== undefined)
    options.reportFault(`The lock name ${JSON.stringify(sanitize(template, 120))} ${fault}.`, []);
  return (scope) => {
    let names = [''];
    for (const piece of pieces) {
      const values = typeof piece === 'string' ? [piece] : toTextList(piece(scope), template).map(encodeLockSegment);
      if (names.length * values.length > MAX_LOCKS) throw createTooManyLocksError();
      names = names.flatMap((name) => values.map((value) => name + value));
    }
    return names.map(assertLockName);
  };
}

function compileLockPart(
  part: { readonly expression: string; readonly offset: number },
  options: TemplateCompileOptions,
): Expression {
  return compileExpression(part.expression, {
    variables: options.variables,
    reportFault: (message, offset = 0) => options.reportFault(message, [], part.offset + offset),
    reportArgumentRead: (argument, offset) => options.reportArgumentRead?.(argument, [], part.offset + offset),
  });
}

function toTextList(value: Json, template: string): string[] {
  const items = Array.isArray(value) ? (value as readonly Json[]) : [value];
  if (items.length > MAX_LOCKS) throw createTooManyLocksError();
  return items.map((item) => {
    if (typeof item === 'string') return item;
    if (typeof item === 'number' || typeof item === 'boolean') return String(item);
    throw new ExpressionError(`\`${sanitize(template, 120)}\` must yield text, a number, a boolean or a list of them`);
  });
}

function encodeLockSegment(value: string): string {
  return encodeURIComponent(value).replaceAll('*', '%2A');
}

function assertLockName(name: string): string {
  const fault = findLockNameFault(name);
  if (fault === undefined) return name;
  throw new ExpressionError(`the lock name ${fault}`);
}

function createTooManyLocksError(): ExpressionError {
  return new ExpressionError(`a call must have at most ${MAX_LOCKS} locks`);
}
