import type { Json } from '../domain/json.ts';
import { legible } from '../domain/legible.ts';
import { lockFault, MOST_LOCKS } from '../domain/lock.ts';
import { type Expression, ExpressionError, type Lock } from '../domain/policy.ts';
import { compileExpression, type Variable } from './expressions.ts';
import type { LockFile } from './schema.ts';
import { splitTemplate, type TemplateSite } from './template.ts';

export const LOCK_SEES: readonly Variable[] = ['args', 'agent', 'saga', 'run'];

/**
 * A lock of a tool. In a name with text of its own, a value fills one segment and can never leave it, nor become a `*`; a list
 * there gives one name for each of its items. A name that is one `${expr}` is, or are, exactly what the expression says.
 */
export function compileLock(lock: LockFile, site: TemplateSite): Lock {
  const { key, mode = 'exclusive', for: scope = 'call' } = typeof lock === 'string' ? { key: lock } : lock;
  return { keys: compileKeys(key, site), mode, for: scope };
}

function compileKeys(template: string, site: TemplateSite): Expression<string[]> {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    site.fault(parts.fault, [], parts.offset);
    return () => [];
  }
  const pieces = parts.map((part) => ('text' in part ? part.text : compilePart(part, site)));
  const [only] = pieces;
  if (pieces.length === 1 && typeof only === 'function') return (scope) => listOf(only(scope), template).map(checked);
  // What a value could be stands for it here, so that what is wrong with the text itself is found when it is loaded.
  const fault = lockFault(pieces.map((piece) => (typeof piece === 'string' ? piece : 'x')).join(''));
  if (fault !== undefined) site.fault(`this name of a lock ${fault}`, []);
  return (scope) => {
    let names = [''];
    for (const piece of pieces) {
      const values = typeof piece === 'string' ? [piece] : listOf(piece(scope), template).map(segment);
      if (names.length * values.length > MOST_LOCKS) throw tooMany();
      names = names.flatMap((name) => values.map((value) => name + value));
    }
    return names.map(checked);
  };
}

function compilePart(part: { readonly expression: string; readonly offset: number }, site: TemplateSite): Expression {
  return compileExpression(part.expression, {
    sees: site.sees,
    fault: (message, offset = 0) => site.fault(message, [], part.offset + offset),
    reads: (argument, offset) => site.reads?.(argument, [], part.offset + offset),
  });
}

function listOf(value: Json, template: string): string[] {
  const items = Array.isArray(value) ? (value as readonly Json[]) : [value];
  if (items.length > MOST_LOCKS) throw tooMany();
  return items.map((item) => {
    if (typeof item === 'string') return item;
    if (typeof item === 'number' || typeof item === 'boolean') return String(item);
    throw new ExpressionError(`neither text, a number nor a list of those: \`${legible(template, 120)}\``);
  });
}

function segment(value: string): string {
  return encodeURIComponent(value).replaceAll('*', '%2A');
}

function checked(name: string): string {
  const fault = lockFault(name);
  if (fault === undefined) return name;
  throw new ExpressionError(`its name ${fault}`);
}

function tooMany(): ExpressionError {
  return new ExpressionError(`more than ${MOST_LOCKS} things at once`);
}
