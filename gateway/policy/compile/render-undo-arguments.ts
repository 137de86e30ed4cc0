import type { Json } from '../../domain/json.ts';
import { type Expression, ExpressionError, type ExpressionScope } from '../../domain/policy.ts';
import { compileTemplate } from '../expressions/compile-template.ts';

/** More than one deployment has. Old templates are needed too, because a call keeps its template for good. */
const MAX_CACHED_TEMPLATES = 1_000;
const compiledTemplates = new Map<string, Expression>();

/** Renders the arguments of an undo from the template stored with its call. Throws ExpressionError. */
export function renderUndoArguments(template: Json, scope: ExpressionScope): Json {
  const text = JSON.stringify(template);
  let evaluate = compiledTemplates.get(text);
  if (evaluate === undefined) {
    const faults: string[] = [];
    evaluate = compileTemplate(template, {
      variables: ['args', 'result', 'agent', 'before'],
      reportFault: (message) => faults.push(message),
    });
    if (faults.length > 0) throw new ExpressionError(faults.join(' '));
    if (compiledTemplates.size >= MAX_CACHED_TEMPLATES) compiledTemplates.clear();
    compiledTemplates.set(text, evaluate);
  }
  return evaluate(scope);
}
