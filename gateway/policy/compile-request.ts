// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the default body is a template
import type { RequestTemplate } from '../domain/policy.ts';
import type { ToolContext } from './compile-tool.ts';
import { isGatewaysOwn } from './compile-upstream.ts';
import type { Variable } from './expressions.ts';
import { at } from './faults.ts';
import { leavesItsPlace } from './path-place.ts';
import { compileOptionalText, compilePath, compileTemplate, splitTemplate } from './template.ts';

const SEES: readonly Variable[] = ['args', 'agent', 'saga', 'run'];
const BODILESS = new Set(['GET', 'HEAD', 'DELETE']);

/** The request of a tool of an http upstream; what is not written comes from the tool's name and its arguments. */
export function compileRequest(context: ToolContext): RequestTemplate {
  const { value, place, report } = context;
  const declared = value.request ?? {};
  const method = declared.method ?? 'POST';
  const path = declared.path ?? `/${context.name.split('.').at(-1)}`;
  checkPath(path, (message) => report.fault(at(place, 'request', 'path'), message));
  const body = declared.body === undefined && !BODILESS.has(method) ? '${args}' : (declared.body ?? undefined);
  if (body !== undefined && (method === 'GET' || method === 'HEAD')) {
    report.fault(at(place, 'request', 'body'), `${method} has no body`);
  }
  for (const header of Object.keys(declared.headers ?? {})) {
    if (isGatewaysOwn(header)) {
      report.fault(
        { ...at(place, 'request', 'headers', header), key: true },
        `${header} is written by the gateway itself`,
      );
    }
  }
  return {
    method,
    pathTemplate: path,
    path: compilePath(path, context.site(['request', 'path'], SEES)),
    query: mapped(declared.query, (key, template) =>
      compileTemplate(template, context.site(['request', 'query', key], SEES)),
    ),
    headers: mapped(declared.headers, (key, template) =>
      compileOptionalText(template, context.site(['request', 'headers', key], SEES)),
    ),
    ...(body !== undefined && { body: compileTemplate(body, context.site(['request', 'body'], SEES)) }),
  };
}

function mapped<T, R>(
  record: Readonly<Record<string, T>> | undefined,
  map: (key: string, value: T) => R,
): Record<string, R> {
  return Object.fromEntries(Object.entries(record ?? {}).map(([key, value]) => [key, map(key, value)]));
}

export function checkPath(path: string, fault: (message: string) => void): void {
  const text = shapeOf(path);
  if (!path.startsWith('/')) fault('a path begins with /');
  if (/[?#]/.test(text)) fault('a path has no ? and no #: use query');
  if (/\s|\\|[^\x20-\x7e]/.test(text)) fault('a path holds only visible ASCII: percent-encode the rest');
  if (leavesItsPlace(text)) fault('a path has no . and .. segments, however they are written');
}

/** `/x/${args.a}` and `/x/${args.b}` are the same to anybody who only sees a request. */
export function shapeOf(path: string): string {
  const parts = splitTemplate(path);
  if (!Array.isArray(parts)) return path;
  return parts.map((part) => ('text' in part ? part.text : '{}')).join('');
}
