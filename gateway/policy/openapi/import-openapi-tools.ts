import path from 'node:path';
import { isJsonObject } from '../../domain/json.ts';
import type { Declarations, DeclaredEntry } from '../declarations.ts';
import { type Diagnostics, locateChild } from '../faults.ts';
import type { ToolDeclaration, UpstreamDeclaration } from '../policy-file-schema.ts';
import { type ParsedYaml, type PolicyFile, parseOpenApiFile, parsePolicyFile } from '../read-policy-files.ts';
import { formatShortValue } from '../zod-issues.ts';
import { type ImportedOperation, importOperation, measureInput, type OpenApiOperation } from './import-operation.ts';
import { buildToolNames, hasRoomForOperationNames } from './import-tool-names.ts';
import { readOpenApi } from './list-operations.ts';

/** Compiling schemas of this total size takes about a second, in which a reloading gateway does nothing else. */
const MAX_TOTAL_INPUT_BYTES = 262_144;

/** A YAML file and the result of parsing it. */
export interface ParsedFile {
  readonly file: PolicyFile;
  readonly parsed: ParsedYaml;
}

/** The files of a directory by purpose. A JSON file can only be an OpenAPI document. */
export interface ClassifiedFiles {
  readonly policies: readonly ParsedFile[];
  readonly tests: readonly ParsedFile[];
  /** The imported OpenAPI documents, by name. */
  readonly documents: ReadonlyMap<string, PolicyFile>;
}

export function classifyFiles(files: readonly PolicyFile[]): ClassifiedFiles {
  const yaml = files.filter(({ name }) => !name.endsWith('.json'));
  const parsed = yaml.map((file) => ({ file, parsed: parsePolicyFile(file) }));
  const named = new Set(parsed.flatMap(listImportedDocuments));
  const rest = parsed.filter(({ file }) => !named.has(file.name));
  const isTest = ({ file }: ParsedFile): boolean => /_test\.ya?ml$/.test(file.name);
  return {
    policies: rest.filter((each) => !isTest(each)),
    tests: rest.filter(isTest),
    documents: new Map(files.filter(({ name }) => named.has(name)).map((file) => [file.name, file])),
  };
}

/** The files that a policy file imports. A file that did not parse imports none. */
function listImportedDocuments({ file, parsed }: ParsedFile): string[] {
  const upstreams = isJsonObject(parsed.source?.value) ? parsed.source.value['upstreams'] : undefined;
  return Object.values(isJsonObject(upstreams) ? upstreams : {}).flatMap((upstream) => {
    if (!isJsonObject(upstream) || upstream['adapter'] !== 'http' || typeof upstream['import'] !== 'string') return [];
    return resolveImportPath(file.name, upstream['import']) ?? [];
  });
}

/** Whether a file is an OpenAPI document. Read as policies, it would report hundreds of misleading faults. */
export function isOpenApiFile(file: PolicyFile): boolean {
  return /^["']?(?:openapi|swagger)["']?[ \t]*:/m.test(file.bytes.toString('latin1'));
}

/** Resolves a path of a policy file to a name below the policy directory. Undefined when it leads elsewhere. */
function resolveImportPath(from: string, written: string): string | undefined {
  const name = path.posix.join(path.posix.dirname(from), written);
  const isInside = !path.posix.isAbsolute(written) && name !== '..' && !name.startsWith('../');
  return isInside && /\.(?:ya?ml|json)$/.test(name) && !written.includes('\\') ? name : undefined;
}

/**
 * Adds a tool for every operation of the documents that http upstreams import. A declared tool of the same name wins, key by key.
 * `once`, `undo` and other promises come only from declared tools.
 */
export function addImportedOperations(
  declared: Declarations,
  documents: ReadonlyMap<string, PolicyFile>,
  diagnostics: Diagnostics,
): Declarations {
  const tools = new Map(declared.tools);
  for (const upstream of declared.upstreams.values()) {
    for (const tool of importOperationsOf(upstream, documents, declared, diagnostics)) tools.set(tool.name, tool);
  }
  return { ...declared, tools };
}

function importOperationsOf(
  upstream: DeclaredEntry<UpstreamDeclaration>,
  documents: ReadonlyMap<string, PolicyFile>,
  declared: Declarations,
  diagnostics: Diagnostics,
): DeclaredEntry<ToolDeclaration>[] {
  const { name, value } = upstream;
  if (value?.adapter !== 'http' || value.import === undefined) return [];
  const file = findDocument(upstream, value.import, documents, diagnostics);
  const parsed = file && parseOpenApiFile(file);
  if (parsed !== undefined) diagnostics.faults.push(...parsed.faults);
  const read = parsed?.source && readOpenApi(parsed.source, diagnostics);
  if (read === undefined) return [];
  const names = buildToolNames(name, read.operations);
  let size = 0;
  return read.operations.flatMap((operation, index) => {
    const tool = names[index] as string;
    const own = declared.tools.get(tool);
    if (size > MAX_TOTAL_INPUT_BYTES) return [];
    const offer = importOperation(read.document, operation, listPresetHeaders(value, own?.value));
    size += measureInput(offer.tool.input);
    if (size > MAX_TOTAL_INPUT_BYTES) {
      const message = `The schemas of the imported tools must have at most ${MAX_TOTAL_INPUT_BYTES} bytes in total. Remove operations that are not needed from the document.`;
      diagnostics.addError(locateChild(upstream.location, 'import'), message);
    }
    return mergeOperation({ name, tool, operation, offer, own }, diagnostics) ?? [];
  });
}

function findDocument(
  { name, location }: DeclaredEntry<UpstreamDeclaration>,
  written: string,
  documents: ReadonlyMap<string, PolicyFile>,
  diagnostics: Diagnostics,
): PolicyFile | undefined {
  const importLocation = locateChild(location, 'import');
  const found = resolveImportPath(location.source.name, written);
  const file = found === undefined ? undefined : documents.get(found);
  if (!hasRoomForOperationNames(name))
    diagnostics.addError(
      { ...location, key: true },
      `The name of an upstream with import is too long (got ${name}). Choose a shorter one, so that its tools have names that models accept.`,
    );
  else if (found === undefined) {
    const expected = 'the path of an OpenAPI document (.yaml, .yml or .json) below the policies, relative to this file';
    diagnostics.addError(importLocation, `import must be ${expected} (got ${formatShortValue(written)}).`);
  } else if (file === undefined)
    diagnostics.addError(
      importLocation,
      `There is no file ${found} below the policies, or it is too large. Check the path.`,
    );
  else return file;
  return undefined;
}

/** Headers that are no arguments: the upstream's own headers, and the one that carries the key of a call. */
function listPresetHeaders(upstream: UpstreamDeclaration, tool: ToolDeclaration | undefined): ReadonlySet<string> {
  const key = tool?.once?.by === 'key' ? tool.once.header : undefined;
  return new Set([...Object.keys(upstream.headers ?? {}), ...(key ? [key] : [])].map((header) => header.toLowerCase()));
}

interface OperationImport {
  readonly name: string;
  readonly tool: string;
  readonly operation: OpenApiOperation;
  readonly offer: ImportedOperation;
  readonly own: DeclaredEntry<ToolDeclaration> | undefined;
}

function mergeOperation(
  { name, tool, operation, offer, own }: OperationImport,
  diagnostics: Diagnostics,
): DeclaredEntry<ToolDeclaration> | undefined {
  if (own === undefined) {
    if (offer.why === undefined)
      return { name: tool, location: operation.location, imported: true, value: { upstream: name, ...offer.tool } };
    if (!offer.isReported)
      diagnostics.addWarning(operation.location, `The operation is not imported as ${tool}. ${offer.why}`);
    return undefined;
  }
  const { value } = own;
  if (value === undefined) return own;
  if (value.upstream !== name) {
    diagnostics.addError(
      locateChild(own.location, 'upstream'),
      `The upstream ${name} imports ${tool}. Write upstream: ${name} (got ${value.upstream}).`,
    );
    return own;
  }
  const request = { ...offer.tool.request, ...value.request };
  const missing = (['request', 'input'] as const).filter((key) => (offer.tool[key] ?? value[key]) === undefined);
  if (missing.length > 0 && !offer.isReported)
    diagnostics.addError(
      { ...own.location, key: true },
      `The ${missing.join(' and ')} of ${tool} cannot be imported and must be declared here. ${offer.why}`,
    );
  return { ...own, value: { ...offer.tool, ...value, request } };
}
