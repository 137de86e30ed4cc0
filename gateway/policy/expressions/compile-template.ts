// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this file is about them
import type { Json } from '../../domain/json.ts';
import { type Expression, ExpressionError } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { hasPathTraversal } from '../compile/path-traversal.ts';
import type { DocumentPath } from '../faults.ts';
import { type CompileOptions, compileExpression, type ScopeVariable } from './compile-expression.ts';

/**
 * Strings with `${expr}`. A string that is exactly one `${expr}` keeps the expression's type; otherwise the values are
 * written into the string. `$${` is a literal `${`.
 */
export interface TemplateCompileOptions {
  readonly sees: readonly ScopeVariable[];
  /** `path` leads to the string inside the template, `offset` into that string. */
  fault(message: string, path: DocumentPath, offset?: number): void;
  reads?(argument: string, path: DocumentPath, offset: number): void;
}

export type TemplatePart = { readonly text: string } | { readonly expression: string; readonly offset: number };

/** Any JSON: strings are templates, lists and objects are walked. */
export function compileTemplate(template: unknown, site: TemplateCompileOptions, path: DocumentPath = []): Expression {
  if (typeof template === 'string') return compileString(template, bindPath(site, path));
  if (Array.isArray(template)) {
    const items = template.map((item, index) => compileTemplate(item, site, [...path, index]));
    return (scope) => items.map((item) => item(scope));
  }
  if (typeof template === 'object' && template !== null) {
    const entries = Object.entries(template).map(
      ([key, value]) => [key, compileTemplate(value, site, [...path, key])] as const,
    );
    return (scope) => Object.fromEntries(entries.map(([key, value]) => [key, value(scope)]));
  }
  return () => template as Json;
}

/** A template whose value is always text: a lock's name, a header. */
export function compileText(template: string, site: TemplateCompileOptions): Expression<string> {
  const evaluate = compileString(template, bindPath(site, []));
  return (scope) => toText(evaluate(scope), template);
}

/** The same, or null when that is all the template yields. */
export function compileOptionalText(template: string, site: TemplateCompileOptions): Expression<string | null> {
  const evaluate = compileString(template, bindPath(site, []));
  return (scope) => {
    const value = evaluate(scope);
    return value === null ? null : toText(value, template);
  };
}

/** A path: every value fills one segment or a part of it, and can never leave it. */
export function compilePath(template: string, site: TemplateCompileOptions): Expression<string> {
  const parts = compileParts(template, bindPath(site, []));
  if (parts.every((part) => typeof part === 'string')) {
    const path = parts.join('');
    // One that does is a fault of the policies, and says so below.
    if (!hasPathTraversal(path)) return () => path;
  }
  return (scope) => {
    const texts = parts.map((part) => (typeof part === 'string' ? part : toPathSegment(part(scope), template)));
    if (hasPathTraversal(texts.join('')))
      throw new ExpressionError(
        `a value has "." or ".." beside a slash, or a control character, which no path may have: \`${template}\``,
      );
    return parts
      .map((part, i) => (typeof part === 'string' ? part : encodePathSegment(texts[i] ?? '', template)))
      .join('');
  };
}

function toPathSegment(value: Json, template: string): string {
  const text = toText(value, template);
  if (text !== '' && text !== '.' && text !== '..') return text;
  throw new ExpressionError(`a value is empty, "." or "..", which no path segment may be: \`${template}\``);
}

function encodePathSegment(value: string, template: string): string {
  try {
    return encodeURIComponent(value);
  } catch {
    throw new ExpressionError(`a value is not well-formed text: \`${template}\``);
  }
}

function bindPath(site: TemplateCompileOptions, path: DocumentPath): CompileOptions {
  return {
    sees: site.sees,
    fault: (message, offset) => site.fault(message, path, offset),
    reads: (argument, offset) => site.reads?.(argument, path, offset),
  };
}

function compileString(template: string, site: CompileOptions): Expression {
  const parts = compileParts(template, site);
  const [only] = parts;
  if (parts.length === 0) return () => '';
  if (parts.length === 1 && only !== undefined) return typeof only === 'string' ? () => only : only;
  return (scope) => parts.map((part) => (typeof part === 'string' ? part : toText(part(scope), template))).join('');
}

function compileParts(template: string, site: CompileOptions): (string | Expression)[] {
  const parts = splitTemplate(template);
  if ('fault' in parts) {
    site.fault(parts.fault, parts.offset);
    return [];
  }
  return parts.map((part) => {
    if ('text' in part) return part.text;
    return compileExpression(part.expression, {
      sees: site.sees,
      fault: (message, offset = 0) => site.fault(message, part.offset + offset),
      reads: (argument, offset) => site.reads?.(argument, part.offset + offset),
    });
  });
}

function toText(value: Json, template: string): string {
  if (typeof value === 'string') return value;
  if (typeof value === 'number' || typeof value === 'boolean') return String(value);
  const kind = value === null ? 'null' : Array.isArray(value) ? 'a list' : 'an object';
  throw new ExpressionError(`${kind} cannot stand inside a string: \`${sanitize(template, 120)}\``);
}

/** Text and expressions in order; never two texts in a row. */
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
      if (end === undefined) return { fault: 'this ${ has no closing }', offset: index };
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

/** The `}` that closes the expression: not one inside a CEL string, nor one that closes a map literal. */
function findExpressionEnd(template: string, start: number): number | undefined {
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

/** A backslash skips the next character, in raw strings too: as the CEL lexer has it. */
function findQuoteEnd(template: string, start: number, quote: string): number | undefined {
  const triple = quote.repeat(3);
  const close = template.startsWith(triple, start) ? triple : quote;
  for (let index = start + close.length; index < template.length; index++) {
    if (template[index] === '\\') index += 1;
    else if (template.startsWith(close, index)) return index + close.length - 1;
  }
  return undefined;
}
