import path from 'node:path';
import { isJsonObject } from '../../domain/json.ts';
import type { Declarations, DeclaredEntry } from '../declarations.ts';
import { type Diagnostics, locateChild } from '../faults.ts';
import type { ToolDeclaration, UpstreamDeclaration } from '../policy-file-schema.ts';
import { type PolicyFile, parseOpenApiFile, parsePolicyFile } from '../read-policy-files.ts';
import { type ImportedOperation, importOperation, measureInput, type OpenApiOperation } from './import-operation.ts';
import { buildToolNames, hasRoomForOperationNames } from './import-tool-names.ts';
import { readOpenApi } from './list-operations.ts';

/** Compiling as much as this takes about a second, in which a gateway that reloads does nothing else. */
const MAX_TOTAL_INPUT_BYTES = 262_144;

/** A YAML file, and what came of reading it. */
export interface ParsedFile {
  readonly file: PolicyFile;
  readonly parsed: ReturnType<typeof parsePolicyFile>;
}

/** The files of a directory by what they are for. JSON is only ever a document. */
export interface ClassifiedFiles {
  readonly policies: readonly ParsedFile[];
  readonly tests: readonly ParsedFile[];
  /** The OpenAPI documents that an `import` names, by name. */
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

/** The files that a policy file imports, as far as it can be read. */
function listImportedDocuments({ file, parsed }: ParsedFile): string[] {
  const upstreams =
    'source' in parsed && isJsonObject(parsed.source.value) ? parsed.source.value['upstreams'] : undefined;
  return Object.values(isJsonObject(upstreams) ? upstreams : {}).flatMap((upstream) => {
    if (!isJsonObject(upstream) || upstream['adapter'] !== 'http' || typeof upstream['import'] !== 'string') return [];
    return resolveImportPath(file.name, upstream['import']) ?? [];
  });
}

/** Read as policies it would have hundreds of faults, and none of them the one that matters. */
export function isOpenApiFile(file: PolicyFile): boolean {
  return /^["']?(?:openapi|swagger)["']?[ \t]*:/m.test(file.bytes.toString('latin1'));
}

/** A path as a policy file writes it, below the directory of the policies; undefined when it leads elsewhere. */
function resolveImportPath(from: string, written: string): string | undefined {
  const name = path.posix.join(path.posix.dirname(from), written);
  const inside = !path.posix.isAbsolute(written) && name !== '..' && !name.startsWith('../');
  return inside && /\.(?:ya?ml|json)$/.test(name) && !written.includes('\\') ? name : undefined;
}

/**
 * The declarations with a tool for every operation of the documents that http upstreams import. What is declared under
 * the same name wins, key by key; how a repeat is harmless, what undoes it and whatever else we promise comes only
 * from there.
 */
export function addImportedOperations(
  declared: Declarations,
  documents: ReadonlyMap<string, PolicyFile>,
  report: Diagnostics,
): Declarations {
  const tools = new Map(declared.tools);
  for (const upstream of declared.upstreams.values()) {
    for (const tool of importOperationsOf(upstream, documents, declared, report)) tools.set(tool.name, tool);
  }
  return { ...declared, tools };
}

function importOperationsOf(
  upstream: DeclaredEntry<UpstreamDeclaration>,
  documents: ReadonlyMap<string, PolicyFile>,
  declared: Declarations,
  report: Diagnostics,
): DeclaredEntry<ToolDeclaration>[] {
  const { name, value } = upstream;
  if (value?.adapter !== 'http' || value.import === undefined) return [];
  const file = findDocument(upstream, value.import, documents, report);
  const parsed = file && parseOpenApiFile(file);
  if (parsed && 'faults' in parsed) report.faults.push(...parsed.faults);
  const read = parsed && 'source' in parsed ? readOpenApi(parsed.source, report) : undefined;
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
      const message = `its tools take more than ${MAX_TOTAL_INPUT_BYTES} bytes to describe: cut the document down to those that are wanted`;
      report.addError(locateChild(upstream.place, 'import'), message);
    }
    return mergeOperation({ name, tool, operation, offer, own }, report) ?? [];
  });
}

function findDocument(
  { name, place }: DeclaredEntry<UpstreamDeclaration>,
  written: string,
  documents: ReadonlyMap<string, PolicyFile>,
  report: Diagnostics,
): PolicyFile | undefined {
  const where = locateChild(place, 'import');
  const found = resolveImportPath(place.source.name, written);
  const file = found === undefined ? undefined : documents.get(found);
  if (!hasRoomForOperationNames(name))
    report.addError({ ...place, key: true }, `${name} is too long a name for an upstream with import`);
  else if (found === undefined) {
    const right = 'write the path of a .yaml, .yml or .json file, as seen from this one, below the policies';
    report.addError(where, `${JSON.stringify(written)} is not an OpenAPI document: ${right}`);
  } else if (file === undefined)
    report.addError(where, `there is no file ${found} below the policies, or it is too large`);
  else return file;
  return undefined;
}

/** Headers that no argument is asked for: the upstream's credentials, and the one that carries the key of a call. */
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
  report: Diagnostics,
): DeclaredEntry<ToolDeclaration> | undefined {
  if (own === undefined) {
    if (offer.why === undefined)
      return { name: tool, place: operation.place, imported: true, value: { upstream: name, ...offer.tool } };
    if (!offer.broken) report.addWarning(operation.place, `not imported as ${tool}: ${offer.why}`);
    return undefined;
  }
  const { value } = own;
  if (value === undefined) return own;
  if (value.upstream !== name) {
    report.addError(locateChild(own.place, 'upstream'), `${tool} is what ${name} imports: write upstream: ${name}`);
    return own;
  }
  const request = { ...offer.tool.request, ...value.request };
  const lacks = (['request', 'input'] as const).filter((key) => (offer.tool[key] ?? value[key]) === undefined);
  if (lacks.length > 0 && !offer.broken)
    report.addError(
      { ...own.place, key: true },
      `write ${lacks.join(' and ')}: it cannot be imported, because ${offer.why}`,
    );
  return { ...own, value: { ...offer.tool, ...value, request } };
}
