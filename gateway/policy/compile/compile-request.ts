// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the default body is a template
import type { RequestTemplate } from '../../domain/policy.ts';
import type { ScopeVariable } from '../expressions/compile-expression.ts';
import { compileOptionalText, compilePath, compileTemplate, splitTemplate } from '../expressions/compile-template.ts';
import { locateChild } from '../faults.ts';
import type { ToolCompilation } from './compile-tool.ts';
import { isReservedHeader } from './compile-upstream.ts';
import { hasPathTraversal } from './path-traversal.ts';

const REQUEST_VARIABLES: readonly ScopeVariable[] = ['args', 'agent', 'saga', 'run'];
const METHODS_WITHOUT_DEFAULT_BODY = new Set(['GET', 'HEAD', 'DELETE']);

/** The request of a tool of an http upstream; what is not written comes from the tool's name and its arguments. */
export function compileRequest(context: ToolCompilation): RequestTemplate {
  const { value, place, report } = context;
  const declared = value.request ?? {};
  const method = declared.method ?? 'POST';
  const path = declared.path ?? `/${context.name.split('.').at(-1)}`;
  checkPathTemplate(path, (message) => report.addError(locateChild(place, 'request', 'path'), message));
  const body =
    declared.body === undefined && !METHODS_WITHOUT_DEFAULT_BODY.has(method) ? '${args}' : (declared.body ?? undefined);
  if (body !== undefined && (method === 'GET' || method === 'HEAD')) {
    report.addError(locateChild(place, 'request', 'body'), `${method} has no body`);
  }
  for (const header of Object.keys(declared.headers ?? {})) {
    if (isReservedHeader(header)) {
      report.addError(
        { ...locateChild(place, 'request', 'headers', header), key: true },
        `${header} is written by the gateway itself`,
      );
    }
  }
  return {
    method,
    pathTemplate: path,
    path: compilePath(path, context.site(['request', 'path'], REQUEST_VARIABLES)),
    query: mapRecord(declared.query, (key, template) =>
      compileTemplate(template, context.site(['request', 'query', key], REQUEST_VARIABLES)),
    ),
    headers: mapRecord(declared.headers, (key, template) =>
      compileOptionalText(template, context.site(['request', 'headers', key], REQUEST_VARIABLES)),
    ),
    ...(body !== undefined && { body: compileTemplate(body, context.site(['request', 'body'], REQUEST_VARIABLES)) }),
  };
}

function mapRecord<T, R>(
  record: Readonly<Record<string, T>> | undefined,
  map: (key: string, value: T) => R,
): Record<string, R> {
  return Object.fromEntries(Object.entries(record ?? {}).map(([key, value]) => [key, map(key, value)]));
}

export function checkPathTemplate(path: string, fault: (message: string) => void): void {
  const text = normalizePathTemplate(path);
  if (!path.startsWith('/')) fault('a path begins with /');
  if (/[?#]/.test(text)) fault('a path has no ? and no #: use query');
  if (/\s|\\|[^\x20-\x7e]/.test(text)) fault('a path holds only visible ASCII: percent-encode the rest');
  if (hasPathTraversal(text)) fault('a path has no . and .. segments, however they are written');
}

/** `/x/${args.a}` and `/x/${args.b}` are the same to anybody who only sees a request. */
export function normalizePathTemplate(path: string): string {
  const parts = splitTemplate(path);
  if (!Array.isArray(parts)) return path;
  return parts.map((part) => ('text' in part ? part.text : '{}')).join('');
}
