// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this file parses them
import type { Json } from '../../domain/json.ts';
import { type Expression, ExpressionError } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { hasPathTraversal } from '../compile/path-traversal.ts';
import type { DocumentPath } from '../faults.ts';
import { type CompileOptions, compileExpression, type ScopeVariable } from './compile-expression.ts';

/**
 * How a template is compiled. A template is JSON whose strings may contain `${expr}`. A string that is exactly one `${expr}` keeps the
 * type of its value; otherwise the values become part of the text. `$${` is a literal `${`.
 */
export interface TemplateCompileOptions {
  readonly variables: readonly ScopeVariable[];
  /** `path` leads to the string inside the template, `offset` into that string. */
  reportFault(message: string, path: DocumentPath, offset?: number): void;
  reportArgumentRead?(argument: string, path: DocumentPath, offset: number): void;
}

export type TemplatePart = { readonly text: string } | { readonly expression: string; readonly offset: number };

/** Compiles any JSON: its strings are templates, and lists and objects are compiled recursively. */
export function compileTemplate(
  template: unknown,
  options: TemplateCompileOptions,
  path: DocumentPath = [],
): Expression {
  if (typeof template === 'string') return compileString(template, bindPath(options, path));
  if (Array.isArray(template)) {
    const items = template.map((item, index) => compileTemplate(item, options, [...path, index]));
    return (scope) => items.map((item) => item(scope));
  }
  if (typeof template === 'object' && template !== null) {
    const entries = Object.entries(template).map(
      ([key, value]) => [key, compileTemplate(value, options, [...path, key])] as const,
    );
    return (scope) => Object.fromEntries(entries.map(([key, value]) => [key, value(scope)]));
  }
  return () => template as Json;
}

/** Compiles a template whose value is always text. */
export function compileText(template: string, options: TemplateCompileOptions): Expression<string> {
  const evaluate = compileString(template, bindPath(options, []));
  return (scope) => toText(evaluate(scope), template);
}

/** Compiles a template whose value is text or null. */
export function compileOptionalText(template: string, options: TemplateCompileOptions): Expression<string | null> {
  const evaluate = compileString(template, bindPath(options, []));
  return (scope) => {
    const value = evaluate(scope);
    return value === null ? null : toText(value, template);
  };
}

/** Compiles a path. Every value stays inside its segment. */
export function compilePath(template: string, options: TemplateCompileOptions): Expression<string> {
  const parts = compileParts(template, bindPath(options, []));
  if (parts.every((part) => typeof part === 'string')) {
    const path = parts.join('');
    // A constant path with traversal is a fault at load; if it is rendered all the same, the check below refuses it.
    if (!hasPathTraversal(path)) return () => path;
  }
  return (scope) => {
    const texts = parts.map((part) => (typeof part === 'string' ? part : toPathSegment(part(scope), template)));
    if (hasPathTraversal(texts.join('')))
      throw new ExpressionError(
        `a value in \`${template}\` has "." or ".." beside a slash, or a control character, which a path must not have`,
      );
    return parts
      .map((part, i) => (typeof part === 'string' ? part : encodePathSegment(texts[i] ?? '', template)))
      .join('');
  };
}

function toPathSegment(value: Json, template: string): string {
  const text = toText(value, template);
  if (text !== '' && text !== '.' && text !== '..') return text;
  throw new ExpressionError(`a value in \`${template}\` is empty, "." or "..", which a path segment must not be`);
}

function encodePathSegment(value: string, template: string): string {
  try {
    return encodeURIComponent(value);
  } catch {
    throw new ExpressionError(`a value in \`${template}\` is not well-formed Unicode text`);
  }
}

function bindPath(options: TemplateCompileOptions, path: DocumentPath): CompileOptions {
  return {
    variables: options.variables,
    reportFault: (message, offset) => options.reportFault(message, path, offset),
    reportArgumentRead: (argument, offset) => options.reportArgumentRead?.(argument, path, offset),
  };
}

function compileString(template: string, options: CompileOptions): Expression {
  const parts = compileParts(template, options);
  const [only] = parts;
  if (parts.length === 0) return () => '';
  if (parts.length === 1 && only !== undefined) return typeof only === 'string' ? () => only : only;
  return (scope) => parts.map((part) => (typeof part === 'string' ? part : toText(part(scope), template))).join('');
}

function compileParts(template: string, options: CompileOptions): (string | Expression)[] {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    options.reportFault(parts.fault, parts.offset);
    return [];
  }
  return parts.map((part) => {
    if ('text' in part) return part.text;
    return compileExpression(part.expression, {
      variables: options.variables,
      reportFault: (message, offset = 0) => options.reportFault(message, part.offset + offset),
      reportArgumentRead: (argument, offset) => options.reportArgumentRead?.(argument, part.offset + offset),
    });
  });
}

function toText(value: Json, template: string): string {
  if (typeof value === 'string') return value;
  if (typeof value === 'number' || typeof value === 'boolean') return String(value);
  const kind = value === null ? 'null' : Array.isArray(value) ? 'a list' : 'an object';
  throw new ExpressionError(`${kind} cannot be part of the text \`${sanitize(template, 120)}\``);
}

/** Splits a template into text and expressions, in order. Two texts never follow each other. */
export function splitTemplate(template: string): TemplatePart[] | { readonly fault: string; readonly offset: number } {
  const parts: TemplatePart[] = [];
  let text = '';
  let index = 0;
  while (index < template.length) {
    if (template.startsWith('$${', index)) {
      text += '${';
      index += 3;
    } else if (template.startsWith('${', index)) {
      const end = findExpressionEnd(template, index + 2);
      if (end === undefined) return { fault: 'This ${ has no closing }.', offset: index };
      if (text !== '') parts.push({ text });
      text = '';
      parts.push({ expression: template.slice(index + 2, end), offset: index + 2 });
      index = end + 1;
    } else {
      text += template[index];
      index += 1;
    }
  }
  if (text !== '') parts.push({ text });
  return parts;
}

/** The offset of the `}` that closes the expression. Skips CEL strings and map literals. */
export function findExpressionEnd(template: string, start: number): number | undefined {
  let depth = 0;
  for (let index = start; index < template.length; index++) {
    const character = template[index];
    if (character === '"' || character === "'") {
      const end = findQuoteEnd(template, index, character);
      if (end === undefined) return undefined;
      index = end;
    } else if (character === '{') depth += 1;
    else if (character === '}') {
      if (depth === 0) return index;
      depth -= 1;
    }
  }
  return undefined;
}

/** A backslash skips the next character, in raw strings too, as in the CEL lexer. */
function findQuoteEnd(template: string, start: number, quote: string): number | undefined {
  const triple = quote.repeat(3);
  const close = template.startsWith(triple, start) ? triple : quote;
  for (let index = start + close.length; index < template.length; index++) {
    if (template[index] === '\\') index += 1;
    else if (template.startsWith(close, index)) return index + close.length - 1;
  }
  return undefined;
}
