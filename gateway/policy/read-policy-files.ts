import { readdir, readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import {
  isAlias,
  isMap,
  isNode,
  isPair,
  isScalar,
  LineCounter,
  parseDocument as parseYaml,
  type Scalar,
  visit,
} from 'yaml';
import { sanitize } from '../domain/sanitize.ts';
import { type Diagnostic, endSentence, type SourceFile, toPosition } from './faults.ts';
import { quoteFlowTemplates } from './quote-flow-templates.ts';

/** The bytes of a policy file. `name` is relative to the policy directory; `file` is the path that messages show. */
export interface PolicyFile {
  readonly name: string;
  readonly file: string;
  readonly bytes: Buffer;
}

const MAX_FILE_BYTES = 1_048_576;
const MAX_FILES = 2_000;
/** Policies and their tests are YAML; an imported OpenAPI document may be JSON. */
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
      faults: [
        {
          file: dir,
          line: 1,
          column: 1,
          message: `The directory cannot be read (${describeFileError(error)}). Check that it exists and is readable.`,
        },
      ],
    };
  }
  if (found.length > MAX_FILES) {
    return {
      files,
      faults: [
        {
          file: dir,
          line: 1,
          column: 1,
          message: `A policy directory must have at most ${MAX_FILES} files (got ${found.length}).`,
        },
      ],
    };
  }
  for (const name of found) {
    const file = path.join(dir, name);
    try {
      const { size } = await stat(file);
      // A large JSON file is left out without a fault. If an upstream imports it, the import reports the fault.
      const isFault = size > MAX_FILE_BYTES && !name.endsWith('.json');
      const message = `A policy file must have at most ${MAX_FILE_BYTES} bytes (got ${size}). Split it into several files.`;
      if (isFault) faults.push({ file, line: 1, column: 1, message });
      if (size <= MAX_FILE_BYTES) files.push({ name, file, bytes: await readFile(file) });
    } catch (error) {
      const message = `The file cannot be read (${describeFileError(error)}). Check its permissions.`;
      faults.push({ file, line: 1, column: 1, message });
    }
  }
  return { files, faults };
}

/** Finds regular files that are not hidden. Skips a FIFO, which would hang. Follows symbolic links, because Kubernetes mounts files as links. */
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

/** A parsed file. It has a source beside faults only if the faults are known not to affect the rest of the file. */
export interface ParsedYaml {
  readonly source?: SourceFile;
  readonly faults: readonly Diagnostic[];
}

/**
 * Parses an OpenAPI document less strictly than a policy file, because other people wrote it. Status codes may be unquoted keys, and
 * limits such as the largest int64 may be inexact. Keys and limits never become part of the arguments of a call.
 */
export function parseOpenApiFile(file: PolicyFile): ParsedYaml {
  return parseYamlFile(file, true);
}

/** Parses YAML 1.2 core: one document, no directives, tags, anchors, aliases or merge keys. */
export function parsePolicyFile(file: PolicyFile): ParsedYaml {
  const text = decodeUtf8(file.bytes);
  if (text === undefined) return parseYamlFile(file, false);
  const parsed = parseYamlText(file, text, false);
  if (parsed.faults.length === 0) return parsed;
  const quoted = quoteFlowTemplates(text);
  if (quoted.found.length === 0) return parsed;
  const { source, faults } = parseYamlText(file, quoted.text, false);
  const found = quoted.found.map(({ offset, message }) => ({ file: file.file, ...countLines(text, offset), message }));
  return { ...(source === undefined ? {} : { source }), faults: [...found, ...faults] };
}

function countLines(text: string, offset: number): { line: number; column: number } {
  const before = text.slice(0, offset);
  return { line: before.split('\n').length, column: offset - before.lastIndexOf('\n') };
}

function decodeUtf8(bytes: Buffer): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

function parseYamlFile(file: PolicyFile, isLenient: boolean): ParsedYaml {
  const text = decodeUtf8(file.bytes);
  if (text !== undefined) return parseYamlText(file, text, isLenient);
  const message = 'The file is not UTF-8 text. Save it as UTF-8.';
  return { faults: [{ file: file.file, line: 1, column: 1, message }] };
}

function parseYamlText(file: PolicyFile, text: string, isLenient: boolean): ParsedYaml {
  const lines = new LineCounter();
  const position = { file: file.file, lines };
  const faults: Diagnostic[] = [];
  try {
    const document = parseYaml(text, {
      version: '1.2',
      schema: 'core',
      merge: false,
      // The parser compares every pair of keys; `checkMapKey` finds duplicates in one pass.
      uniqueKeys: false,
      strict: true,
      prettyErrors: false,
      stringKeys: false,
      lineCounter: lines,
    });
    const addFault = (offset: number, message: string): void => {
      faults.push({ ...toPosition(position, offset), message });
    };
    for (const error of [...document.errors, ...document.warnings])
      addFault(error.pos[0], describeYamlError(error.code, error.message));
    if (document.directives?.yaml.explicit || Object.keys(document.directives?.tags ?? {}).length > 1) {
      addFault(0, 'YAML directives such as %YAML are not allowed. Remove the line.');
    }
    visit(document, (_key, node) => {
      const offset = isNode(node) ? (node.range?.[0] ?? 0) : 0;
      if (isAlias(node)) addFault(offset, 'YAML aliases are not allowed. Write the value out.');
      else if (isNode(node) && (node as { anchor?: string }).anchor !== undefined) {
        addFault(offset, 'YAML anchors are not allowed. Write the value out where it is used.');
      }
      if (isMap(node)) {
        const keys = new Set<unknown>();
        for (const item of node.items) checkMapKey(item, keys, isLenient, addFault);
      }
      if (!isLenient && isScalar(node) && typeof node.value === 'number' && !isExactNumber(node.value)) {
        const written = String(node.source ?? node.value).slice(0, 60);
        addFault(offset, `The number ${written} cannot be represented exactly. Quote it, or write a smaller number.`);
      }
    });
    if (faults.length > 0) return { faults };
    const value = document.toJS() as unknown;
    return { source: { name: file.name, file: file.file, text, document, lines, value }, faults };
  } catch (error) {
    // The parser recurses, so thousands of nested levels overflow its stack. That is a fault of the file.
    const message =
      error instanceof RangeError
        ? 'The file is nested too deeply. Remove some levels.'
        : endSentence(`The file is not valid YAML: ${(error as Error).message}`);
    return { faults: [{ file: file.file, line: 1, column: 1, message }] };
  }
}

function checkMapKey(
  item: unknown,
  keys: Set<unknown>,
  isLenient: boolean,
  addFault: (offset: number, message: string) => void,
): void {
  if (!isPair(item)) return;
  const { key } = item;
  const offset = isNode(key) ? (key.range?.[0] ?? 0) : 0;
  if (isLenient && isScalar(key) && typeof key.value === 'number') key.value = String(key.source ?? key.value);
  if (!isScalar(key)) addFault(offset, 'A key must be text (got a map or a list).');
  else if (typeof key.value !== 'string') addFault(offset, `A key must be text (got ${formatKey(key)}). Quote it.`);
  else if (key.value === '__proto__') addFault(offset, 'A key must not be __proto__. Choose another name.');
  else if (key.value === '<<') addFault(offset, 'YAML merge keys (<<) are not allowed. Write the keys out.');
  else if (keys.has(key.value)) addFault(offset, `The key ${formatKey(key)} appears twice. Remove one of them.`);
  else keys.add(key.value);
}

function formatKey({ source, value }: Scalar): string {
  return sanitize(String(source ?? value ?? 'nothing'), 60);
}

function isExactNumber(value: number): boolean {
  return Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
}

function describeYamlError(code: string, message: string): string {
  if (code === 'MULTIPLE_DOCS')
    return 'A file must hold only one YAML document. Put each document into a file of its own.';
  return endSentence(`The file is not valid YAML: ${message.split('\n')[0] ?? message}`);
}
