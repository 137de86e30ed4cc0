import { createHash } from 'node:crypto';
import { MAX_MODEL_NAME_LENGTH, toModelName } from '../compile/cross-check.ts';

/** The parts of an operation that its name is built from: the `operationId`, else method and path. */
export interface OperationIdentity {
  readonly method: string;
  readonly path: string;
  readonly id: string | undefined;
}

const HASH_LENGTH = 8;
/** The minimum length that is left for the operation's part of a name. */
const MIN_OPERATION_NAME_LENGTH = 16;

export function hasRoomForOperationNames(upstream: string): boolean {
  return toModelName(`${upstream}.`).length + MIN_OPERATION_NAME_LENGTH <= MAX_MODEL_NAME_LENGTH;
}

/**
 * Builds the name of a tool for each operation. Names that would be equal, in policies or for models, all get a hash. So a name
 * never changes its meaning when the document grows.
 */
export function buildToolNames(upstream: string, operations: readonly OperationIdentity[]): string[] {
  const plain = operations.map((operation) => `${upstream}.${slugifyOperation(operation)}`);
  const count = new Map<string, number>();
  for (const name of plain) count.set(toModelName(name), (count.get(toModelName(name)) ?? 0) + 1);
  return plain.map((name, index) => {
    const isAmbiguous = (count.get(toModelName(name)) ?? 0) > 1;
    if (!isAmbiguous && toModelName(name).length <= MAX_MODEL_NAME_LENGTH) return name;
    return shortenWithHash(name, operations[index] as OperationIdentity);
  });
}

/** Keeps letters, digits, `_`, `-` and single dots. Replaces each run of other characters by one underscore. */
function slugifyOperation({ method, path, id }: OperationIdentity): string {
  const text = id ?? method.toLowerCase() + path;
  const clean = text.replaceAll(/[^\w.-]+/g, '_').replaceAll(/_*\._*|\.+/g, '.');
  const parts = clean.split('.').map((part) => (id === undefined ? part.replaceAll(/^_+|_+$/g, '') : part));
  return parts.filter((part) => part !== '').join('.') || 'operation';
}

function shortenWithHash(name: string, { method, path }: OperationIdentity): string {
  const hash = createHash('sha256').update(`${method} ${path}`).digest('hex').slice(0, HASH_LENGTH);
  let kept = name;
  while (toModelName(kept).length > MAX_MODEL_NAME_LENGTH - HASH_LENGTH - 1) kept = kept.slice(0, -1);
  return `${kept.replace(/[._-]+$/, '')}_${hash}`;
}
