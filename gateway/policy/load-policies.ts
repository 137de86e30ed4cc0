import { createHash } from 'node:crypto';
import type { Policies } from '../domain/policy.ts';
import { compileAgent, compilePerson } from './compile/compile-agent.ts';
import { compileTool } from './compile/compile-tool.ts';
import { compileUpstream } from './compile/compile-upstream.ts';
import { crossCheck } from './compile/cross-check.ts';
import { collectDeclarations, type Declarations, type DeclaredEntry } from './declarations.ts';
import { deepFreeze } from './deep-freeze.ts';
import {
  type Diagnostic,
  Diagnostics,
  endSentence,
  formatDiagnostic,
  type SourceFile,
  sortDiagnostics,
} from './faults.ts';
import {
  addImportedOperations,
  classifyFiles,
  isOpenApiFile,
  type ParsedFile,
} from './openapi/import-openapi-tools.ts';
import { collectPolicyTests, type PolicyTest } from './policy-tests.ts';
import { type PolicyFile, readPolicyFiles } from './read-policy-files.ts';
import type { Env } from './resolve-secrets.ts';

export { type Diagnostic as Fault, formatDiagnostic as formatFault };

export interface LoadOptions {
  readonly dir: string;
  /** The variables of `${env.NAME}`. */
  readonly env: Env;
}

export type LoadResult =
  | {
      readonly ok: true;
      readonly policies: Policies;
      readonly tests: readonly PolicyTest[];
      readonly warnings: readonly Diagnostic[];
    }
  | { readonly ok: false; readonly faults: readonly Diagnostic[]; readonly warnings: readonly Diagnostic[] };

/** Loads every policy file below a directory: frozen policies, or every fault at once. Never throws. */
export async function loadPolicies(options: LoadOptions): Promise<LoadResult> {
  const { files, faults } = await readPolicyFiles(options.dir);
  return compilePolicies(files, options.env, faults);
}

/** Loads files that are already read. Never throws. */
export function compilePolicies(
  files: readonly PolicyFile[],
  env: Env,
  faults: readonly Diagnostic[] = [],
): LoadResult {
  const diagnostics = new Diagnostics();
  diagnostics.faults.push(...faults);
  try {
    const loaded = compileFiles(files, env, diagnostics);
    if (diagnostics.faults.length === 0)
      return { ok: true, ...loaded, warnings: sortDiagnostics(diagnostics.warnings) };
  } catch (error) {
    // An exception would end the gateway on a reload, so it becomes a fault.
    const cause = error instanceof Error ? error.message : String(error);
    const message = endSentence(`The policies could not be loaded: ${cause}`);
    diagnostics.faults.push({ file: files[0]?.file ?? 'policies', line: 1, column: 1, message });
  }
  return { ok: false, faults: sortDiagnostics(diagnostics.faults), warnings: sortDiagnostics(diagnostics.warnings) };
}

function compileFiles(
  files: readonly PolicyFile[],
  env: Env,
  diagnostics: Diagnostics,
): { policies: Policies; tests: readonly PolicyTest[] } {
  const sorted = classifyFiles(files);
  const declared = addImportedOperations(
    collectDeclarations(collectSources(sorted.policies, diagnostics), diagnostics),
    sorted.documents,
    diagnostics,
  );
  const tests = collectPolicyTests(collectSources(sorted.tests, diagnostics), diagnostics);

  const upstreams = compileEach(declared.upstreams, (entry) => compileUpstream(entry, env, diagnostics));
  const tools = compileEach(declared.tools, (entry) => {
    const upstream = entry.value?.upstream ?? '';
    return compileTool(
      entry,
      { compiled: upstreams.get(upstream), raw: pickUpstreamTarget(declared, upstream) },
      diagnostics,
    );
  });
  const agents = compileEach(declared.agents, (entry) => compileAgent(entry, env, { tools, upstreams }, diagnostics));
  const people = compileEach(declared.people, (entry) => compilePerson(entry, env, diagnostics));
  crossCheck(declared, { upstreams, tools, agents, people }, diagnostics);
  const read = [...sorted.policies.map(({ file }) => file), ...sorted.documents.values()];
  const version = computePolicyVersion(read);
  return { policies: deepFreeze({ version, files: listFileNames(read), upstreams, tools, agents, people }), tests };
}

function collectSources(files: readonly ParsedFile[], diagnostics: Diagnostics): SourceFile[] {
  return files.flatMap(({ file, parsed }) => {
    if (isOpenApiFile(file)) {
      const message =
        'No upstream imports this OpenAPI document. Name its path in import of an http upstream, or remove it.';
      diagnostics.faults.push({ file: file.file, line: 1, column: 1, message });
      return [];
    }
    diagnostics.faults.push(...parsed.faults);
    return parsed.source === undefined ? [] : [parsed.source];
  });
}

function compileEach<T, R>(
  declared: ReadonlyMap<string, DeclaredEntry<T>>,
  compileOne: (entry: DeclaredEntry<T>) => R | undefined,
): Map<string, R> {
  const compiled = new Map<string, R>();
  for (const [name, entry] of declared) {
    const value = compileOne(entry);
    if (value !== undefined) compiled.set(name, value);
  }
  return compiled;
}

/** The target of a tool's requests as declared. It is unresolved, so that the digest of a contract contains no secret. */
function pickUpstreamTarget(declared: Declarations, upstream: string): unknown {
  const value = declared.upstreams.get(upstream)?.value;
  return value && { adapter: value.adapter, url: value.url, command: value.command, expose: value.expose };
}

function listFileNames(files: readonly PolicyFile[]): string[] {
  return files.map(({ name }) => name).sort();
}

/** A hash over the names and bytes of the files. Values of the environment are secret and do not count. */
function computePolicyVersion(files: readonly PolicyFile[]): string {
  const hash = createHash('sha256');
  for (const { name, bytes } of [...files].sort((a, b) => (a.name < b.name ? -1 : 1))) {
    hash.update(`${Buffer.byteLength(name)}:${name}${bytes.length}:`).update(bytes);
  }
  return hash.digest('hex').slice(0, 16);
}
