import type { Json } from '../../domain/json.ts';
import { type Expression, ExpressionError, type ExpressionScope } from '../../domain/policy.ts';
import { compileTemplate } from '../expressions/compile-template.ts';

/** As many as a deployment has undos, and some more: policies change, and calls keep what they were promised. */
const MAX_CACHED_TEMPLATES = 1_000;
const compiledTemplates = new Map<string, Expression>();

/** The arguments of an undo, from the template that was kept with its call. Throws ExpressionError. */
export function renderUndoArguments(template: Json, scope: ExpressionScope): Json {
  const text = JSON.stringify(template);
  let evaluate = compiledTemplates.get(text);
  if (evaluate === undefined) {
    const faults: string[] = [];
    evaluate = compileTemplate(template, {
      sees: ['args', 'result', 'agent', 'before'],
      fault: (message) => faults.push(message),
    });
    if (faults.length > 0) throw new ExpressionError(faults.join('; '));
    if (compiledTemplates.size >= MAX_CACHED_TEMPLATES) compiledTemplates.clear();
    compiledTemplates.set(text, evaluate);
  }
  return evaluate(scope);
}
