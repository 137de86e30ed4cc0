import type { Json, JsonObject } from '../domain/json.ts';
import { locate, type Path, type Report, type Source } from './faults.ts';
import { NotImportable, OpenApiDocument } from './import-document.ts';
import type { Method, Operation } from './import-operation.ts';

const METHODS: Readonly<Record<string, Method>> = {
  get: 'GET',
  head: 'HEAD',
  post: 'POST',
  put: 'PUT',
  patch: 'PATCH',
  delete: 'DELETE',
};
const NOT_SENT = ['options', 'trace'];
const MOST_OPERATIONS = 2_000;

/** A document and its operations in the order they are written; undefined when it is none. */
export function readOpenApi(
  source: Source,
  report: Report,
): { document: OpenApiDocument; operations: Operation[] } | undefined {
  const document = OpenApiDocument.from(source, report);
  if (document === undefined) return undefined;
  const operations: Operation[] = [];
  collect(document, operations);
  if (operations.length > MOST_OPERATIONS) {
    document.fault(['paths'], `more than ${MOST_OPERATIONS} operations: cut it down to those that are wanted`);
    return undefined;
  }
  refuseSameId(document, operations);
  return { document, operations };
}

function collect(document: OpenApiDocument, operations: Operation[]): void {
  told(() => {
    for (const [path, item] of Object.entries(document.map(document.root['paths'], ['paths']))) {
      if (path.startsWith('x-')) continue;
      told(
        () => collectPath(document, path, item, operations),
        (why) => document.warn(['paths', path], why),
      );
    }
  });
}

function collectPath(document: OpenApiDocument, path: string, item: Json, operations: Operation[]): void {
  const found = document.follow(item, ['paths', path]);
  const map = document.map(found.value, found.path);
  const shared = { value: map['parameters'] ?? [], path: [...found.path, 'parameters'] };
  if (map['servers'] !== undefined)
    document.warn([...found.path, 'servers'], 'these servers are ignored: requests go to the url of the upstream');
  for (const key of NOT_SENT)
    if (map[key] !== undefined) document.warn([...found.path, key], `${key.toUpperCase()} is not imported`);
  for (const [key, method] of Object.entries(METHODS)) {
    if (map[key] === undefined) continue;
    told(() => {
      const where = [...found.path, key];
      const value = document.map(map[key], where);
      const id = idOf(document, value, where);
      operations.push({ method, path, id, value, where, shared, place: { ...document.place(where), key: true } });
    });
  }
}

function idOf(document: OpenApiDocument, operation: JsonObject, where: Path): string | undefined {
  const id = operation['operationId'];
  if (id !== undefined && (typeof id !== 'string' || id === ''))
    throw document.fault([...where, 'operationId'], 'an operationId is text');
  return id;
}

function refuseSameId(document: OpenApiDocument, operations: readonly Operation[]): void {
  const seen = new Map<string, Operation>();
  for (const operation of operations) {
    if (operation.id === undefined) continue;
    const first = seen.get(operation.id);
    if (first !== undefined) {
      const { file, line, column } = locate(document.place([...first.where, 'operationId']));
      document.fault(
        [...operation.where, 'operationId'],
        `${JSON.stringify(operation.id)} is already the operationId at ${file}:${line}:${column}`,
      );
    }
    seen.set(operation.id, first ?? operation);
  }
}

/** A broken part does not hide the faults of the others. What is only not supported is handed on. */
function told(read: () => void, unsupported?: (why: string) => void): void {
  try {
    read();
  } catch (error) {
    if (!(error instanceof NotImportable)) throw error;
    if (!error.broken) unsupported?.(error.message);
  }
}
