import { createHash } from 'node:crypto';
import { MOST_MODEL_NAME, modelName } from './link.ts';

/** An operation as it is named: by its `operationId`, else by method and path. */
export interface Named {
  readonly method: string;
  readonly path: string;
  readonly id: string | undefined;
}

const HASH = 8;
/** What an operation's own part of the name needs at the least. */
const LEAST = 16;

export function leavesRoom(upstream: string): boolean {
  return modelName(`${upstream}.`).length + LEAST <= MOST_MODEL_NAME;
}

/**
 * The names of an upstream's tools, one for each operation. Those that would be alike, to us or to a model, all get a
 * hash: a name that meant one operation never comes to mean another because the document got longer.
 */
export function operationNames(upstream: string, operations: readonly Named[]): string[] {
  const plain = operations.map((operation) => `${upstream}.${slug(operation)}`);
  const count = new Map<string, number>();
  for (const name of plain) count.set(modelName(name), (count.get(modelName(name)) ?? 0) + 1);
  return plain.map((name, index) => {
    const alike = (count.get(modelName(name)) ?? 0) > 1;
    if (!alike && modelName(name).length <= MOST_MODEL_NAME) return name;
    return shortened(name, operations[index] as Named);
  });
}

/** Letters, digits, `_`, `-` and dots between them; everything else is an underscore, and runs are one. */
function slug({ method, path, id }: Named): string {
  const text = id ?? method.toLowerCase() + path;
  const clean = text.replaceAll(/[^\w.-]+/g, '_').replaceAll(/_*\._*|\.+/g, '.');
  const parts = clean.split('.').map((part) => (id === undefined ? part.replaceAll(/^_+|_+$/g, '') : part));
  return parts.filter((part) => part !== '').join('.') || 'operation';
}

function shortened(name: string, { method, path }: Named): string {
  const hash = createHash('sha256').update(`${method} ${path}`).digest('hex').slice(0, HASH);
  let kept = name;
  while (modelName(kept).length > MOST_MODEL_NAME - HASH - 1) kept = kept.slice(0, -1);
  return `${kept.replace(/[._-]+$/, '')}_${hash}`;
}
