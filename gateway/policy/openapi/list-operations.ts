import type { Json, JsonObject } from '../../domain/json.ts';
import { type Diagnostics, type DocumentPath, resolvePosition, type SourceFile } from '../faults.ts';
import type { HttpMethod, OpenApiOperation } from './import-operation.ts';
import { NotImportableError, OpenApiDocument } from './openapi-document.ts';

const METHODS: Readonly<Record<string, HttpMethod>> = {
  get: 'GET',
  head: 'HEAD',
  post: 'POST',
  put: 'PUT',
  patch: 'PATCH',
  delete: 'DELETE',
};
const UNSUPPORTED_METHODS = ['options', 'trace'];
const MAX_OPERATIONS = 2_000;

/** A document and its operations in the order they are written; undefined when it is none. */
export function readOpenApi(
  source: SourceFile,
  report: Diagnostics,
): { document: OpenApiDocument; operations: OpenApiOperation[] } | undefined {
  const document = OpenApiDocument.fromSource(source, report);
  if (document === undefined) return undefined;
  const operations: OpenApiOperation[] = [];
  collectOperations(document, operations);
  if (operations.length > MAX_OPERATIONS) {
    document.addError(['paths'], `more than ${MAX_OPERATIONS} operations: cut it down to those that are wanted`);
    return undefined;
  }
  reportDuplicateIds(document, operations);
  return { document, operations };
}

function collectOperations(document: OpenApiDocument, operations: OpenApiOperation[]): void {
  skipNotImportable(() => {
    for (const [path, item] of Object.entries(document.expectMap(document.root['paths'], ['paths']))) {
      if (path.startsWith('x-')) continue;
      skipNotImportable(
        () => collectPathOperations(document, path, item, operations),
        (why) => document.addWarning(['paths', path], why),
      );
    }
  });
}

function collectPathOperations(
  document: OpenApiDocument,
  path: string,
  item: Json,
  operations: OpenApiOperation[],
): void {
  const found = document.dereference(item, ['paths', path]);
  const map = document.expectMap(found.value, found.path);
  const shared = { value: map['parameters'] ?? [], path: [...found.path, 'parameters'] };
  if (map['servers'] !== undefined)
    document.addWarning(
      [...found.path, 'servers'],
      'these servers are ignored: requests go to the url of the upstream',
    );
  for (const key of UNSUPPORTED_METHODS)
    if (map[key] !== undefined) document.addWarning([...found.path, key], `${key.toUpperCase()} is not imported`);
  for (const [key, method] of Object.entries(METHODS)) {
    if (map[key] === undefined) continue;
    skipNotImportable(() => {
      const where = [...found.path, key];
      const value = document.expectMap(map[key], where);
      const id = readOperationId(document, value, where);
      operations.push({ method, path, id, value, where, shared, place: { ...document.locate(where), key: true } });
    });
  }
}

function readOperationId(document: OpenApiDocument, operation: JsonObject, where: DocumentPath): string | undefined {
  const id = operation['operationId'];
  if (id !== undefined && (typeof id !== 'string' || id === ''))
    throw document.addError([...where, 'operationId'], 'an operationId is text');
  return id;
}

function reportDuplicateIds(document: OpenApiDocument, operations: readonly OpenApiOperation[]): void {
  const seen = new Map<string, OpenApiOperation>();
  for (const operation of operations) {
    if (operation.id === undefined) continue;
    const first = seen.get(operation.id);
    if (first !== undefined) {
      const { file, line, column } = resolvePosition(document.locate([...first.where, 'operationId']));
      document.addError(
        [...operation.where, 'operationId'],
        `${JSON.stringify(operation.id)} is already the operationId at ${file}:${line}:${column}`,
      );
    }
    seen.set(operation.id, first ?? operation);
  }
}

/** A broken part does not hide the faults of the others. What is only not supported is handed on. */
function skipNotImportable(read: () => void, unsupported?: (why: string) => void): void {
  try {
    read();
  } catch (error) {
    if (!(error instanceof NotImportableError)) throw error;
    if (!error.broken) unsupported?.(error.message);
  }
}
