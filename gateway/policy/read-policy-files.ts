import { readdir, readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { isAlias, isMap, isNode, isPair, isScalar, LineCounter, parseDocument as parseYaml, visit } from 'yaml';
import { type Diagnostic, type SourceFile, toPosition } from './faults.ts';

/** A policy file as bytes; `name` is relative to the directory, `file` is how a person finds it. */
export interface PolicyFile {
  readonly name: string;
  readonly file: string;
  readonly bytes: Buffer;
}

const MAX_FILE_BYTES = 1_048_576;
const MAX_FILES = 2_000;
/** Policies and their tests are YAML; the OpenAPI documents that they import may be JSON. */
export const POLICY_FILE_PATTERN = /\.(?:ya?ml|json)$/;

export async function readPolicyFiles(dir: string): Promise<{ files: PolicyFile[]; faults: Diagnostic[] }> {
  const faults: Diagnostic[] = [];
  const files: PolicyFile[] = [];
  let found: string[];
  try {
    found = (await findPolicyFiles(dir)).sort();
  } catch (error) {
    return {
      files,
      faults: [{ file: dir, line: 1, column: 1, message: `cannot be read: ${describeFileError(error)}` }],
    };
  }
  if (found.length > MAX_FILES) {
    return { files, faults: [{ file: dir, line: 1, column: 1, message: `more than ${MAX_FILES} policy files` }] };
  }
  for (const name of found) {
    const file = path.join(dir, name);
    try {
      const { size } = await stat(file);
      // JSON is only read because an upstream may import it: what nobody imports is nobody's fault.
      const fault = size > MAX_FILE_BYTES && !name.endsWith('.json');
      if (fault) faults.push({ file, line: 1, column: 1, message: `larger than ${MAX_FILE_BYTES} bytes` });
      if (size <= MAX_FILE_BYTES) files.push({ name, file, bytes: await readFile(file) });
    } catch (error) {
      faults.push({ file, line: 1, column: 1, message: `cannot be read: ${describeFileError(error)}` });
    }
  }
  return { files, faults };
}

/** Regular files only (a FIFO would hang), hidden ones not; a symbolic link counts, as Kubernetes mounts files so. */
async function findPolicyFiles(dir: string, below = '', depth = 0): Promise<string[]> {
  const names: string[] = [];
  for (const entry of await readdir(path.join(dir, below), { withFileTypes: true })) {
    if (entry.name.startsWith('.') || entry.name === 'node_modules') continue;
    const name = below === '' ? entry.name : `${below}/${entry.name}`;
    if (entry.isDirectory()) {
      if (depth < 8) names.push(...(await findPolicyFiles(dir, name, depth + 1)));
    } else if (POLICY_FILE_PATTERN.test(entry.name)) {
      const isFile = entry.isFile() || (entry.isSymbolicLink() && (await stat(path.join(dir, name))).isFile());
      if (isFile) names.push(name);
    }
  }
  return names;
}

export function describeFileError(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
}

/**
 * The same for an OpenAPI document, which others wrote: status codes are keys without quotes there, and limits such as
 * that of an int64 are not exact. Neither is anything that arguments could be.
 */
export function parseOpenApiFile(file: PolicyFile): { source: SourceFile } | { faults: Diagnostic[] } {
  return parseYamlFile(file, true);
}

/** YAML 1.2 core, one document, no directives, tags, anchors, aliases or merge keys: what is read is what is written. */
export function parsePolicyFile(file: PolicyFile): { source: SourceFile } | { faults: Diagnostic[] } {
  return parseYamlFile(file, false);
}

function parseYamlFile(file: PolicyFile, lenient: boolean): { source: SourceFile } | { faults: Diagnostic[] } {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(file.bytes);
  } catch {
    return { faults: [{ file: file.file, line: 1, column: 1, message: 'not UTF-8 text' }] };
  }
  const lines = new LineCounter();
  const where = { file: file.file, lines };
  const faults: Diagnostic[] = [];
  try {
    const document = parseYaml(text, {
      version: '1.2',
      schema: 'core',
      merge: false,
      // The parser compares every key with every other; a set below does it in one pass.
      uniqueKeys: false,
      strict: true,
      prettyErrors: false,
      stringKeys: false,
      lineCounter: lines,
    });
    const say = (offset: number, message: string): void => {
      faults.push({ ...toPosition(where, offset), message });
    };
    for (const error of [...document.errors, ...document.warnings])
      say(error.pos[0], describeYamlError(error.code, error.message));
    if (document.directives?.yaml.explicit || Object.keys(document.directives?.tags ?? {}).length > 1) {
      say(0, 'YAML directives are refused');
    }
    visit(document, (_key, node) => {
      if (isAlias(node)) say(node.range?.[0] ?? 0, 'YAML aliases are refused: write it out');
      else if (isNode(node) && (node as { anchor?: string }).anchor !== undefined) {
        say(node.range?.[0] ?? 0, 'YAML anchors are refused: write it out');
      }
      if (isMap(node)) {
        const keys = new Set<unknown>();
        for (const item of node.items) checkMapKey(item, keys, lenient, say);
      }
      if (!lenient && isScalar(node) && typeof node.value === 'number' && !isExactNumber(node.value)) {
        say(node.range?.[0] ?? 0, 'this number is not exact: quote it, or write a smaller one');
      }
    });
    if (faults.length > 0) return { faults };
    return { source: { name: file.name, file: file.file, text, document, lines, value: document.toJS() as unknown } };
  } catch (error) {
    // The parser recurses: a file that nests thousands deep ends its stack, not the gateway.
    const message = error instanceof RangeError ? 'nested too deeply' : `not YAML: ${(error as Error).message}`;
    return { faults: [{ file: file.file, line: 1, column: 1, message }] };
  }
}

function checkMapKey(
  item: unknown,
  keys: Set<unknown>,
  lenient: boolean,
  say: (offset: number, message: string) => void,
): void {
  if (!isPair(item)) return;
  const { key } = item;
  const offset = isNode(key) ? (key.range?.[0] ?? 0) : 0;
  if (lenient && isScalar(key) && typeof key.value === 'number') key.value = String(key.source ?? key.value);
  if (!isScalar(key) || typeof key.value !== 'string') say(offset, 'a key must be text: quote it');
  else if (key.value === '__proto__') say(offset, 'a key must not be __proto__');
  else if (key.value === '<<') say(offset, 'YAML merge keys are refused: write it out');
  else if (keys.has(key.value)) say(offset, 'this key is there twice');
  else keys.add(key.value);
}

function isExactNumber(value: number): boolean {
  return Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
}

function describeYamlError(code: string, message: string): string {
  if (code === 'MULTIPLE_DOCS') return 'more than one YAML document: use one file each';
  return `not YAML: ${message.split('\n')[0] ?? message}`;
}
