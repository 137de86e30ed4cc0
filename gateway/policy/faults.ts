import type { Document, LineCounter, Pair } from 'yaml';
import { isMap, isScalar, isSeq } from 'yaml';

/** One fault or warning and its position in a policy file. `message` is one or two whole sentences. */
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

/** A YAML file that parsed: its text, its tree and its line starts. */
export interface SourceFile {
  /** The path relative to the policy directory. */
  readonly name: string;
  /** The path that messages show: the policy directory as given, then `name`. */
  readonly file: string;
  readonly text: string;
  readonly document: Document.Parsed;
  readonly lines: LineCounter;
  readonly value: unknown;
}

/** The location of a value, or with `key: true` of its key. */
export interface SourceLocation {
  readonly source: SourceFile;
  readonly path: DocumentPath;
  readonly key?: boolean;
}

/** Collects faults, which refuse the policies, and warnings, which do not. */
export class Diagnostics {
  readonly faults: Diagnostic[] = [];
  readonly warnings: Diagnostic[] = [];

  addError(location: SourceLocation, message: string, offset?: number): void {
    this.faults.push({ ...resolvePosition(location, offset), message });
  }

  addWarning(location: SourceLocation, message: string, offset?: number): void {
    this.warnings.push({ ...resolvePosition(location, offset), message });
  }
}

export function locateChild(location: SourceLocation, ...more: DocumentPath): SourceLocation {
  return { source: location.source, path: [...location.path, ...more] };
}

export function locateKey(location: SourceLocation, ...more: DocumentPath): SourceLocation {
  return { source: location.source, path: [...location.path, ...more], key: true };
}

/**
 * The position of a location, or of its nearest ancestor that exists. `offset` is a position inside a string value. It is ignored
 * when the file folds or escapes the string, because the offset then fits nothing in the file.
 */
export function resolvePosition(location: SourceLocation, offset?: number): Omit<Diagnostic, 'message'> {
  const { source, path } = location;
  let node: unknown = source.document.contents;
  let start = findStartOffset(node) ?? 0;
  let value: unknown;
  for (const [depth, segment] of path.entries()) {
    const found = findChild(node, segment);
    if (found === undefined) break;
    const wantsKey = depth === path.length - 1 && location.key === true;
    // A map starts at its first key; the map's own name identifies it better.
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

/** Caches the pairs of a map by key, because a file with thousands of entries may have as many faults. */
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

/** Sorts by position and removes duplicates: a document that two upstreams import is read twice and reports its faults twice. */
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

/** ` Did you mean "x"?` to append to a sentence, or an empty string when no candidate is near. */
export function didYouMean(word: string, candidates: Iterable<string>): string {
  const near = findClosestName(word, candidates);
  return near === undefined ? '' : ` Did you mean ${JSON.stringify(near)}?`;
}

export function findClosestName(word: string, candidates: Iterable<string>): string | undefined {
  if (word.length > 128) return undefined;
  let best: string | undefined;
  let bestDistance = word.length < 2 ? 1 : Math.max(1, Math.floor(word.length / 3)) + 1;
  for (const candidate of candidates) {
    const distance = candidate.toLowerCase() === word.toLowerCase() ? 0 : levenshtein(word, candidate);
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
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

/** `a, b and c`; past `max` names `a, b and 7 more`. */
export function formatList(names: Iterable<string>, max = 12): string {
  const all = [...names];
  const shown = all.slice(0, max);
  if (all.length > max) return `${shown.join(', ')} and ${all.length - max} more`;
  return shown.length < 2 ? shown.join('') : `${shown.slice(0, -1).join(', ')} and ${shown.at(-1)}`;
}

/** Ends the text with a full stop, unless it ends with punctuation already. For messages of libraries. */
export function endSentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
