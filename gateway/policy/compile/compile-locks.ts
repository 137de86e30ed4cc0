import { findLockNameFault, MAX_LOCKS } from '../../domain/controls/lock.ts';
import type { Json } from '../../domain/json.ts';
import { type Expression, ExpressionError, type LockSpec } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { compileExpression, type ScopeVariable } from '../expressions/compile-expression.ts';
import { splitTemplate, type TemplateCompileOptions } from '../expressions/compile-template.ts';
import type { LockDeclaration } from '../policy-file-schema.ts';

export const LOCK_VARIABLES: readonly ScopeVariable[] = ['args', 'agent', 'saga', 'run'];

/**
 * A lock of a tool. In a name with text of its own, a value fills one segment and can never leave it, nor become a `*`; a list
 * there gives one name for each of its items. A name that is one `${expr}` is, or are, exactly what the expression says.
 */
export function compileLock(lock: LockDeclaration, site: TemplateCompileOptions): LockSpec {
  const { key, mode = 'exclusive', for: scope = 'call' } = typeof lock === 'string' ? { key: lock } : lock;
  return { keys: compileLockKeys(key, site), mode, for: scope };
}

function compileLockKeys(template: string, site: TemplateCompileOptions): Expression<string[]> {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    site.fault(parts.fault, [], parts.offset);
    return () => [];
  }
  const pieces = parts.map((part) => ('text' in part ? part.text : compileLockPart(part, site)));
  const [only] = pieces;
  if (pieces.length === 1 && typeof only === 'function')
    return (scope) => toTextList(only(scope), template).map(assertLockName);
  // What a value could be stands for it here, so that what is wrong with the text itself is found when it is loaded.
  const fault = findLockNameFault(pieces.map((piece) => (typeof piece === 'string' ? piece : 'x')).join(''));
  if (fault !== undefined) site.fault(`this name of a lock ${fault}`, []);
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
  site: TemplateCompileOptions,
): Expression {
  return compileExpression(part.expression, {
    sees: site.sees,
    fault: (message, offset = 0) => site.fault(message, [], part.offset + offset),
    reads: (argument, offset) => site.reads?.(argument, [], part.offset + offset),
  });
}

function toTextList(value: Json, template: string): string[] {
  const items = Array.isArray(value) ? (value as readonly Json[]) : [value];
  if (items.length > MAX_LOCKS) throw createTooManyLocksError();
  return items.map((item) => {
    if (typeof item === 'string') return item;
    if (typeof item === 'number' || typeof item === 'boolean') return String(item);
    throw new ExpressionError(`neither text, a number nor a list of those: \`${sanitize(template, 120)}\``);
  });
}

function encodeLockSegment(value: string): string {
  return encodeURIComponent(value).replaceAll('*', '%2A');
}

function assertLockName(name: string): string {
  const fault = findLockNameFault(name);
  if (fault === undefined) return name;
  throw new ExpressionError(`its name ${fault}`);
}

function createTooManyLocksError(): ExpressionError {
  return new ExpressionError(`more than ${MAX_LOCKS} things at once`);
}
