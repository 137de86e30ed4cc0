import path from 'node:path';
import { isObject } from '../domain/json.ts';
import type { Declarations, Declared } from './declared.ts';
import { at, type Report } from './faults.ts';
import { leavesRoom, operationNames } from './import-names.ts';
import { readOpenApi } from './import-openapi.ts';
import { type Offer, type Operation, readOperation, sizeOf } from './import-operation.ts';
import { type PolicyFile, parseDocument, parseSource } from './read.ts';
import type { ToolFile, UpstreamFile } from './schema.ts';

/** Compiling as much as this takes about a second, in which a gateway that reloads does nothing else. */
const MOST_INPUTS = 262_144;

/** A YAML file, and what came of reading it. */
export interface ParsedFile {
  readonly file: PolicyFile;
  readonly parsed: ReturnType<typeof parseSource>;
}

/** The files of a directory by what they are for. JSON is only ever a document. */
export interface SortedFiles {
  readonly policies: readonly ParsedFile[];
  readonly tests: readonly ParsedFile[];
  /** The OpenAPI documents that an `import` names, by name. */
  readonly documents: ReadonlyMap<string, PolicyFile>;
}

export function sortFiles(files: readonly PolicyFile[]): SortedFiles {
  const yaml = files.filter(({ name }) => !name.endsWith('.json'));
  const parsed = yaml.map((file) => ({ file, parsed: parseSource(file) }));
  const named = new Set(parsed.flatMap(namedBy));
  const rest = parsed.filter(({ file }) => !named.has(file.name));
  const isTest = ({ file }: ParsedFile): boolean => /_test\.ya?ml$/.test(file.name);
  return {
    policies: rest.filter((each) => !isTest(each)),
    tests: rest.filter(isTest),
    documents: new Map(files.filter(({ name }) => named.has(name)).map((file) => [file.name, file])),
  };
}

/** The files that a policy file imports, as far as it can be read. */
function namedBy({ file, parsed }: ParsedFile): string[] {
  const upstreams = 'source' in parsed && isObject(parsed.source.value) ? parsed.source.value['upstreams'] : undefined;
  return Object.values(isObject(upstreams) ? upstreams : {}).flatMap((upstream) => {
    if (!isObject(upstream) || upstream['adapter'] !== 'http' || typeof upstream['import'] !== 'string') return [];
    return fileNamed(file.name, upstream['import']) ?? [];
  });
}

/** Read as policies it would have hundreds of faults, and none of them the one that matters. */
export function isStrayDocument(file: PolicyFile): boolean {
  return /^["']?(?:openapi|swagger)["']?[ \t]*:/m.test(file.bytes.toString('latin1'));
}

/** A path as a policy file writes it, below the directory of the policies; undefined when it leads elsewhere. */
function fileNamed(from: string, written: string): string | undefined {
  const name = path.posix.join(path.posix.dirname(from), written);
  const inside = !path.posix.isAbsolute(written) && name !== '..' && !name.startsWith('../');
  return inside && /\.(?:ya?ml|json)$/.test(name) && !written.includes('\\') ? name : undefined;
}

/**
 * The declarations with a tool for every operation of the documents that http upstreams import. What is declared under
 * the same name wins, key by key; how a repeat is harmless, what undoes it and whatever else we promise comes only
 * from there.
 */
export function withOperations(
  declared: Declarations,
  documents: ReadonlyMap<string, PolicyFile>,
  report: Report,
): Declarations {
  const tools = new Map(declared.tools);
  for (const upstream of declared.upstreams.values()) {
    for (const tool of operationsOf(upstream, documents, declared, report)) tools.set(tool.name, tool);
  }
  return { ...declared, tools };
}

function operationsOf(
  upstream: Declared<UpstreamFile>,
  documents: ReadonlyMap<string, PolicyFile>,
  declared: Declarations,
  report: Report,
): Declared<ToolFile>[] {
  const { name, value } = upstream;
  if (value?.adapter !== 'http' || value.import === undefined) return [];
  const file = documentOf(upstream, value.import, documents, report);
  const parsed = file && parseDocument(file);
  if (parsed && 'faults' in parsed) report.faults.push(...parsed.faults);
  const read = parsed && 'source' in parsed ? readOpenApi(parsed.source, report) : undefined;
  if (read === undefined) return [];
  const names = operationNames(name, read.operations);
  let size = 0;
  return read.operations.flatMap((operation, index) => {
    const tool = names[index] as string;
    const own = declared.tools.get(tool);
    if (size > MOST_INPUTS) return [];
    const offer = readOperation(read.document, operation, headersGiven(value, own?.value));
    size += sizeOf(offer.tool.input);
    if (size > MOST_INPUTS) {
      const message = `its tools take more than ${MOST_INPUTS} bytes to describe: cut the document down to those that are wanted`;
      report.fault(at(upstream.place, 'import'), message);
    }
    return merge({ name, tool, operation, offer, own }, report) ?? [];
  });
}

function documentOf(
  { name, place }: Declared<UpstreamFile>,
  written: string,
  documents: ReadonlyMap<string, PolicyFile>,
  report: Report,
): PolicyFile | undefined {
  const where = at(place, 'import');
  const found = fileNamed(place.source.name, written);
  const file = found === undefined ? undefined : documents.get(found);
  if (!leavesRoom(name))
    report.fault({ ...place, key: true }, `${name} is too long a name for an upstream with import`);
  else if (found === undefined) {
    const right = 'write the path of a .yaml, .yml or .json file, as seen from this one, below the policies';
    report.fault(where, `${JSON.stringify(written)} is not an OpenAPI document: ${right}`);
  } else if (file === undefined)
    report.fault(where, `there is no file ${found} below the policies, or it is too large`);
  else return file;
  return undefined;
}

/** Headers that no argument is asked for: the upstream's credentials, and the one that carries the key of a call. */
function headersGiven(upstream: UpstreamFile, tool: ToolFile | undefined): ReadonlySet<string> {
  const key = tool?.once?.by === 'key' ? tool.once.header : undefined;
  return new Set([...Object.keys(upstream.headers ?? {}), ...(key ? [key] : [])].map((header) => header.toLowerCase()));
}

interface Import {
  readonly name: string;
  readonly tool: string;
  readonly operation: Operation;
  readonly offer: Offer;
  readonly own: Declared<ToolFile> | undefined;
}

function merge({ name, tool, operation, offer, own }: Import, report: Report): Declared<ToolFile> | undefined {
  if (own === undefined) {
    if (offer.why === undefined)
      return { name: tool, place: operation.place, imported: true, value: { upstream: name, ...offer.tool } };
    if (!offer.broken) report.warn(operation.place, `not imported as ${tool}: ${offer.why}`);
    return undefined;
  }
  const { value } = own;
  if (value === undefined) return own;
  if (value.upstream !== name) {
    report.fault(at(own.place, 'upstream'), `${tool} is what ${name} imports: write upstream: ${name}`);
    return own;
  }
  const request = { ...offer.tool.request, ...value.request };
  const lacks = (['request', 'input'] as const).filter((key) => (offer.tool[key] ?? value[key]) === undefined);
  if (lacks.length > 0 && !offer.broken)
    report.fault(
      { ...own.place, key: true },
      `write ${lacks.join(' and ')}: it cannot be imported, because ${offer.why}`,
    );
  return { ...own, value: { ...offer.tool, ...value, request } };
}
