// biome-ignore-all lint/suspicious/noTemplateCurlyInString: messages show templates
import { Lexer } from 'yaml';
import { sanitize } from '../domain/sanitize.ts';
import { findExpressionEnd } from './expressions/compile-template.ts';

/** An unquoted `${…}` inside `{…}` or `[…]`, and the fault that says to quote it. */
export interface UnquotedTemplate {
  readonly offset: number;
  readonly message: string;
}

/**
 * Quotes each unquoted value with `${…}` inside a flow map or list. YAML takes its `{` for the start of a map, which makes the rest
 * of the file invalid. With the value quoted, the loader finds the other faults of the file, and only those.
 */
export function quoteFlowTemplates(text: string): { readonly text: string; readonly found: UnquotedTemplate[] } {
  const found: UnquotedTemplate[] = [];
  let quoted = '';
  let copied = 0;
  for (const start of findFlowTemplates(text)) {
    if (start < copied) continue;
    const end = findValueEnd(text, start);
    // After an expression without an end, nothing tells what the author meant.
    if (end === undefined) break;
    const value = text.slice(start, end);
    const isClean = !/["\\\n]/.test(value);
    const right = isClean ? `"${value}"` : `'${value.replaceAll("'", "''")}'`;
    const shown = right.length > 60 || right.includes('\n') ? '"${…}"' : sanitize(right, 60);
    const message = `A value with \${ must be quoted inside { } and [ ]. Write ${shown}.`;
    found.push({ offset: start, message });
    quoted += text.slice(copied, start) + right;
    copied = end;
  }
  return { text: quoted + text.slice(copied), found };
}

/** The starts of plain scalars that end in `$` right before a `{`. Outside of flow collections, a `{` does not end a scalar. */
function findFlowTemplates(text: string): number[] {
  const starts: number[] = [];
  let offset = 0;
  let isScalar = false;
  let previous: { readonly start: number; readonly source: string } | undefined;
  for (const token of new Lexer().lex(text)) {
    // Control characters mark the kind of the next token, and are no part of the text.
    if (!isScalar && token === SCALAR_MARK) {
      isScalar = true;
      continue;
    }
    if (!isScalar && OTHER_MARKS.has(token)) continue;
    if (token === '{' && previous?.source.endsWith('$')) starts.push(previous.start);
    previous = isScalar ? { start: offset, source: token } : undefined;
    isScalar = false;
    offset += token.length;
  }
  return starts;
}

const SCALAR_MARK = '\u001f';
const OTHER_MARKS = new Set(['\u0002', '\u0018']);

/** The end of a plain value: the next `,`, `]`, `}` or line break outside of expressions. Undefined for an open expression. */
function findValueEnd(text: string, start: number): number | undefined {
  let index = start;
  while (index < text.length && !',]}\n\r'.includes(text[index] as string)) {
    if (text.startsWith('${', index)) {
      const end = findExpressionEnd(text, index + 2);
      if (end === undefined) return undefined;
      index = end + 1;
    } else if (/^:[ \t]|^[ \t]#/.test(text.slice(index, index + 2))) break;
    else index += 1;
  }
  return start + text.slice(start, index).trimEnd().length;
}
