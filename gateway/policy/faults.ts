import type { Document, LineCounter, Pair } from 'yaml';
import { isMap, isScalar, isSeq } from 'yaml';

/** One thing that is wrong in a policy file, and where. */
export interface Diagnostic {
  readonly file: string;
  readonly line: number;
  readonly column: number;
  readonly message: string;
}

export function formatDiagnostic(fault: Diagnostic): string {
  return `${fault.file}:${fault.line}:${fault.column}: ${fault.message}`;
}

export type DocumentPath = readonly (string | number)[];

/** One YAML file that parsed: its text, its tree, and where things are in it. */
export interface SourceFile {
  /** Below the directory of the policies. */
  readonly name: string;
  /** As it is named to a person: below the directory as that was given. */
  readonly file: string;
  readonly text: string;
  readonly document: Document.Parsed;
  readonly lines: LineCounter;
  readonly value: unknown;
}

/** Where a value is; `key: true` points at its key instead. */
export interface SourceLocation {
  readonly source: SourceFile;
  readonly path: DocumentPath;
  readonly key?: boolean;
}

/** Collects faults (the policies are refused) and warnings (they are loaded, and somebody should look). */
export class Diagnostics {
  readonly faults: Diagnostic[] = [];
  readonly warnings: Diagnostic[] = [];

  addError(place: SourceLocation, message: string, offset?: number): void {
    this.faults.push({ ...resolvePosition(place, offset), message });
  }

  addWarning(place: SourceLocation, message: string, offset?: number): void {
    this.warnings.push({ ...resolvePosition(place, offset), message });
  }
}

export function locateChild(place: SourceLocation, ...more: DocumentPath): SourceLocation {
  return { source: place.source, path: [...place.path, ...more] };
}

export function locateKey(place: SourceLocation, ...more: DocumentPath): SourceLocation {
  return { source: place.source, path: [...place.path, ...more], key: true };
}

/**
 * The position of a place, or of the nearest thing around it that exists. `offset` is a position inside a string value;
 * it is used when the string stands in the file as it is (not folded, not escaped).
 */
export function resolvePosition(place: SourceLocation, offset?: number): Omit<Diagnostic, 'message'> {
  const { source, path } = place;
  let node: unknown = source.document.contents;
  let start = findStartOffset(node) ?? 0;
  let value: unknown;
  for (const [depth, segment] of path.entries()) {
    const found = findChild(node, segment);
    if (found === undefined) break;
    const wantsKey = depth === path.length - 1 && place.key === true;
    // A map's own start is its first key: its name says better which one is meant.
    const named = found.key !== undefined && (wantsKey || !isScalar(found.value));
    start = findStartOffset(named ? found.key : found.value) ?? findStartOffset(found.key) ?? start;
    node = found.value;
    value = depth === path.length - 1 && !wantsKey ? node : undefined;
  }
  if (offset !== undefined && isScalar(value) && typeof value.value === 'string' && value.range) {
    const inside = source.text.slice(value.range[0], value.range[1]).indexOf(value.value);
    if (inside >= 0) start = value.range[0] + inside + offset;
  }
  return toPosition(source, start);
}

export function toPosition(source: Pick<SourceFile, 'file' | 'lines'>, offset: number): Omit<Diagnostic, 'message'> {
  const { line, col } = source.lines.linePos(offset);
  return { file: source.file, line: Math.max(line, 1), column: Math.max(col, 1) };
}

/** The pairs of a map by key: a file with thousands of entries may have as many faults. */
const pairsByKey = new WeakMap<object, ReadonlyMap<unknown, Pair>>();

function findChild(node: unknown, segment: string | number): { key?: unknown; value: unknown } | undefined {
  if (isMap(node)) {
    let pairs = pairsByKey.get(node);
    if (pairs === undefined) {
      const entries = node.items.flatMap((item) => (isScalar(item.key) ? [[item.key.value, item] as const] : []));
      pairs = new Map(entries);
      pairsByKey.set(node, pairs);
    }
    const pair = pairs.get(segment);
    return pair && { key: pair.key, value: pair.value };
  }
  if (isSeq(node) && typeof segment === 'number' && segment < node.items.length) {
    return { value: node.items[segment] };
  }
  return undefined;
}

function findStartOffset(node: unknown): number | undefined {
  const range = (node as { range?: readonly number[] | null } | null | undefined)?.range;
  return range?.[0];
}

/** By place, each once: a document that two upstreams import is read for each of them. */
export function sortDiagnostics(faults: readonly Diagnostic[]): Diagnostic[] {
  const distinct = new Map(faults.map((fault) => [formatDiagnostic(fault), fault]));
  return [...distinct.values()].sort(
    (a, b) =>
      (a.file < b.file ? -1 : a.file > b.file ? 1 : 0) ||
      a.line - b.line ||
      a.column - b.column ||
      (a.message < b.message ? -1 : 1),
  );
}

/** `; did you mean "x"?`, or nothing when no candidate is near. */
export function didYouMean(word: string, candidates: Iterable<string>): string {
  const near = findClosest(word, candidates);
  return near === undefined ? '' : `; did you mean ${JSON.stringify(near)}?`;
}

function findClosest(word: string, candidates: Iterable<string>): string | undefined {
  if (word.length > 128) return undefined;
  let best: string | undefined;
  let least = word.length < 2 ? 1 : Math.max(1, Math.floor(word.length / 3)) + 1;
  for (const candidate of candidates) {
    const distance = candidate.toLowerCase() === word.toLowerCase() ? 0 : levenshtein(word, candidate);
    if (distance < least) [best, least] = [candidate, distance];
  }
  return best;
}

function levenshtein(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = (previous[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      row.push(Math.min(change, (previous[j] ?? 0) + 1, (row[j - 1] ?? 0) + 1));
    }
    previous = row;
  }
  return previous[b.length] ?? 0;
}

/** `a, b and c`, shortened so that a message stays one line. */
export function formatList(names: Iterable<string>, most = 12): string {
  const all = [...names];
  const shown = all.slice(0, most);
  if (all.length > most) return `${shown.join(', ')} and ${all.length - most} more`;
  return shown.length < 2 ? shown.join('') : `${shown.slice(0, -1).join(', ')} and ${shown.at(-1)}`;
}
