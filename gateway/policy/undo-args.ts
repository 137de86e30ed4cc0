import type { Json } from '../domain/json.ts';
import { type Expression, ExpressionError, type Scope } from '../domain/policy.ts';
import { compileTemplate } from './template.ts';

/** As many as a deployment has undos, and some more: policies change, and calls keep what they were promised. */
const MOST_KEPT = 1_000;
const compiled = new Map<string, Expression>();

/** The arguments of an undo, from the template that was kept with its call. Throws ExpressionError. */
export function undoArguments(template: Json, scope: Scope): Json {
  const text = JSON.stringify(template);
  let evaluate = compiled.get(text);
  if (evaluate === undefined) {
    const faults: string[] = [];
    evaluate = compileTemplate(template, {
      sees: ['args', 'result', 'agent', 'before'],
      fault: (message) => faults.push(message),
    });
    if (faults.length > 0) throw new ExpressionError(faults.join('; '));
    if (compiled.size >= MOST_KEPT) compiled.clear();
    compiled.set(text, evaluate);
  }
  return evaluate(scope);
}
