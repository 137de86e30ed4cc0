// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the default body is a template
import type { RequestTemplate } from '../../domain/policy.ts';
import type { ScopeVariable } from '../expressions/compile-expression.ts';
import { compileOptionalText, compilePath, compileTemplate, splitTemplate } from '../expressions/compile-template.ts';
import { locateChild } from '../faults.ts';
import { formatShortValue } from '../zod-issues.ts';
import type { ToolCompilation } from './compile-tool.ts';
import { isReservedHeader } from './compile-upstream.ts';
import { hasPathTraversal } from './path-traversal.ts';

const REQUEST_VARIABLES: readonly ScopeVariable[] = ['args', 'agent', 'saga', 'run'];
const METHODS_WITHOUT_DEFAULT_BODY = new Set(['GET', 'HEAD', 'DELETE']);

/** Compiles the request of an http tool. The default path is the tool's name, and the default body its arguments. */
export function compileRequest(context: ToolCompilation): RequestTemplate {
  const { value, location, diagnostics } = context;
  const declared = value.request ?? {};
  const method = declared.method ?? 'POST';
  const path = declared.path ?? `/${context.name.split('.').at(-1)}`;
  checkPathTemplate(path, (message) => diagnostics.addError(locateChild(location, 'request', 'path'), message));
  const body =
    declared.body === undefined && !METHODS_WITHOUT_DEFAULT_BODY.has(method) ? '${args}' : (declared.body ?? undefined);
  if (body !== undefined && (method === 'GET' || method === 'HEAD')) {
    diagnostics.addError(
      locateChild(location, 'request', 'body'),
      `A ${method} request must not have a body. Remove body, or choose another method.`,
    );
  }
  for (const header of Object.keys(declared.headers ?? {})) {
    if (isReservedHeader(header)) {
      diagnostics.addError(
        { ...locateChild(location, 'request', 'headers', header), key: true },
        `The gateway itself writes the header ${header}. Remove it.`,
      );
    }
  }
  return {
    method,
    pathTemplate: path,
    path: compilePath(path, context.templateOptions(['request', 'path'], REQUEST_VARIABLES)),
    query: mapRecord(declared.query, (key, template) =>
      compileTemplate(template, context.templateOptions(['request', 'query', key], REQUEST_VARIABLES)),
    ),
    headers: mapRecord(declared.headers, (key, template) =>
      compileOptionalText(template, context.templateOptions(['request', 'headers', key], REQUEST_VARIABLES)),
    ),
    ...(body !== undefined && {
      body: compileTemplate(body, context.templateOptions(['request', 'body'], REQUEST_VARIABLES)),
    }),
  };
}

function mapRecord<T, R>(
  record: Readonly<Record<string, T>> | undefined,
  map: (key: string, value: T) => R,
): Record<string, R> {
  return Object.fromEntries(Object.entries(record ?? {}).map(([key, value]) => [key, map(key, value)]));
}

export function checkPathTemplate(path: string, reportFault: (message: string) => void): void {
  const text = normalizePathTemplate(path);
  const got = `(got ${formatShortValue(path)})`;
  if (!path.startsWith('/')) reportFault(`path must begin with / ${got}.`);
  if (/[?#]/.test(text)) reportFault(`path must not contain ? or # ${got}. Write query parameters in query.`);
  if (/\s|\\|[^\x20-\x7e]/.test(text))
    reportFault(`path must contain only visible ASCII characters ${got}. Percent-encode the others.`);
  if (hasPathTraversal(text)) reportFault(`path must not contain . or .. segments, not even encoded ${got}.`);
}

/** Replaces expressions by `{}`: `/x/${args.a}` and `/x/${args.b}` match the same requests. */
export function normalizePathTemplate(path: string): string {
  const parts = splitTemplate(path);
  if (!Array.isArray(parts)) return path;
  return parts.map((part) => ('text' in part ? part.text : '{}')).join('');
}
