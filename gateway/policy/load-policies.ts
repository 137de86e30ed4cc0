import { createHash } from 'node:crypto';
import type { Policies } from '../domain/policy.ts';
import { compileAgent, compilePerson } from './compile/compile-agent.ts';
import { compileTool } from './compile/compile-tool.ts';
import { compileUpstream } from './compile/compile-upstream.ts';
import { crossCheck } from './compile/cross-check.ts';
import { collectDeclarations, type Declarations, type DeclaredEntry } from './declarations.ts';
import { deepFreeze } from './deep-freeze.ts';
import { type Diagnostic, Diagnostics, formatDiagnostic, type SourceFile, sortDiagnostics } from './faults.ts';
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
  /** What `${env.NAME}` sees. */
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

/** Reads every policy file below a directory: all of them good and frozen, or every fault at once. Never throws. */
export async function loadPolicies(options: LoadOptions): Promise<LoadResult> {
  const { files, faults } = await readPolicyFiles(options.dir);
  return compilePolicies(files, options.env, faults);
}

/** The same without a file system, for files that are already read. */
export function compilePolicies(
  files: readonly PolicyFile[],
  env: Env,
  faults: readonly Diagnostic[] = [],
): LoadResult {
  const report = new Diagnostics();
  report.faults.push(...faults);
  try {
    const loaded = compileFiles(files, env, report);
    if (report.faults.length === 0) return { ok: true, ...loaded, warnings: sortDiagnostics(report.warnings) };
  } catch (error) {
    // A loader that throws takes the gateway down on a reload; what it could not digest is a fault like any other.
    const message = `could not be loaded: ${error instanceof Error ? error.message : String(error)}`;
    report.faults.push({ file: files[0]?.file ?? 'policies', line: 1, column: 1, message });
  }
  return { ok: false, faults: sortDiagnostics(report.faults), warnings: sortDiagnostics(report.warnings) };
}

function compileFiles(
  files: readonly PolicyFile[],
  env: Env,
  report: Diagnostics,
): { policies: Policies; tests: readonly PolicyTest[] } {
  const sorted = classifyFiles(files);
  const declared = addImportedOperations(
    collectDeclarations(collectSources(sorted.policies, report), report),
    sorted.documents,
    report,
  );
  const tests = collectPolicyTests(collectSources(sorted.tests, report), report);

  const upstreams = compileEach(declared.upstreams, (entry) => compileUpstream(entry, env, report));
  const tools = compileEach(declared.tools, (entry) => {
    const upstream = entry.value?.upstream ?? '';
    return compileTool(
      entry,
      { compiled: upstreams.get(upstream), raw: pickUpstreamTarget(declared, upstream) },
      report,
    );
  });
  const agents = compileEach(declared.agents, (entry) => compileAgent(entry, env, { tools, upstreams }, report));
  const people = compileEach(declared.people, (entry) => compilePerson(entry, env, report));
  crossCheck(declared, { upstreams, tools, agents, people }, report);
  const read = [...sorted.policies.map(({ file }) => file), ...sorted.documents.values()];
  const version = computePolicyVersion(read);
  return { policies: deepFreeze({ version, files: listFileNames(read), upstreams, tools, agents, people }), tests };
}

function collectSources(files: readonly ParsedFile[], report: Diagnostics): SourceFile[] {
  return files.flatMap(({ file, parsed }) => {
    if (isOpenApiFile(file)) {
      const message = 'an OpenAPI document that no upstream imports: write import with its path at one';
      report.faults.push({ file: file.file, line: 1, column: 1, message });
      return [];
    }
    if ('source' in parsed) return [parsed.source];
    report.faults.push(...parsed.faults);
    return [];
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

/** Where a tool's requests go, as declared: unresolved, so that a contract's digest holds no secret. */
function pickUpstreamTarget(declared: Declarations, upstream: string): unknown {
  const value = declared.upstreams.get(upstream)?.value;
  return value && { adapter: value.adapter, url: value.url, command: value.command, expose: value.expose };
}

function listFileNames(files: readonly PolicyFile[]): string[] {
  return files.map(({ name }) => name).sort();
}

/** Over names and bytes as they were read; what the environment fills in is secret and no part of it. */
function computePolicyVersion(files: readonly PolicyFile[]): string {
  const hash = createHash('sha256');
  for (const { name, bytes } of [...files].sort((a, b) => (a.name < b.name ? -1 : 1))) {
    hash.update(`${Buffer.byteLength(name)}:${name}${bytes.length}:`).update(bytes);
  }
  return hash.digest('hex').slice(0, 16);
}
