import { createHash } from 'node:crypto';
import { MAX_MODEL_NAME_LENGTH, toModelName } from '../compile/cross-check.ts';

/** An operation as it is named: by its `operationId`, else by method and path. */
export interface OperationIdentity {
  readonly method: string;
  readonly path: string;
  readonly id: string | undefined;
}

const HASH_LENGTH = 8;
/** What an operation's own part of the name needs at the least. */
const MIN_OPERATION_NAME_LENGTH = 16;

export function hasRoomForOperationNames(upstream: string): boolean {
  return toModelName(`${upstream}.`).length + MIN_OPERATION_NAME_LENGTH <= MAX_MODEL_NAME_LENGTH;
}

/**
 * The names of an upstream's tools, one for each operation. Those that would be alike, to us or to a model, all get a
 * hash: a name that meant one operation never comes to mean another because the document got longer.
 */
export function buildToolNames(upstream: string, operations: readonly OperationIdentity[]): string[] {
  const plain = operations.map((operation) => `${upstream}.${slugifyOperation(operation)}`);
  const count = new Map<string, number>();
  for (const name of plain) count.set(toModelName(name), (count.get(toModelName(name)) ?? 0) + 1);
  return plain.map((name, index) => {
    const alike = (count.get(toModelName(name)) ?? 0) > 1;
    if (!alike && toModelName(name).length <= MAX_MODEL_NAME_LENGTH) return name;
    return shortenWithHash(name, operations[index] as OperationIdentity);
  });
}

/** Letters, digits, `_`, `-` and dots between them; everything else is an underscore, and runs are one. */
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
