import { createHash } from 'node:crypto';
import type { Policies } from '../domain/policy.ts';
import { compileAgent, compilePerson } from './compile-agent.ts';
import { compileTool } from './compile-tool.ts';
import { compileUpstream } from './compile-upstream.ts';
import { collect, type Declarations, type Declared } from './declared.ts';
import { type Fault, formatFault, inOrder, Report, type Source } from './faults.ts';
import { freezeDeeply } from './freeze.ts';
import { isStrayDocument, type ParsedFile, sortFiles, withOperations } from './imports.ts';
import { link } from './link.ts';
import { type PolicyFile, readFiles } from './read.ts';
import type { Env } from './secrets.ts';
import { collectTests, type PolicyTest } from './suite.ts';

export { type Fault, formatFault };

export interface LoadOptions {
  readonly dir: string;
  /** What `${env.NAME}` sees. */
  readonly env: Env;
}

export type Loaded =
  | {
      readonly ok: true;
      readonly policies: Policies;
      readonly tests: readonly PolicyTest[];
      readonly warnings: readonly Fault[];
    }
  | { readonly ok: false; readonly faults: readonly Fault[]; readonly warnings: readonly Fault[] };

/** Reads every policy file below a directory: all of them good and frozen, or every fault at once. Never throws. */
export async function loadPolicies(options: LoadOptions): Promise<Loaded> {
  const { files, faults } = await readFiles(options.dir);
  return compilePolicies(files, options.env, faults);
}

/** The same without a file system, for files that are already read. */
export function compilePolicies(files: readonly PolicyFile[], env: Env, faults: readonly Fault[] = []): Loaded {
  const report = new Report();
  report.faults.push(...faults);
  try {
    const loaded = compile(files, env, report);
    if (report.faults.length === 0) return { ok: true, ...loaded, warnings: inOrder(report.warnings) };
  } catch (error) {
    // A loader that throws takes the gateway down on a reload; what it could not digest is a fault like any other.
    const message = `could not be loaded: ${error instanceof Error ? error.message : String(error)}`;
    report.faults.push({ file: files[0]?.file ?? 'policies', line: 1, column: 1, message });
  }
  return { ok: false, faults: inOrder(report.faults), warnings: inOrder(report.warnings) };
}

function compile(
  files: readonly PolicyFile[],
  env: Env,
  report: Report,
): { policies: Policies; tests: readonly PolicyTest[] } {
  const sorted = sortFiles(files);
  const declared = withOperations(collect(sourcesOf(sorted.policies, report), report), sorted.documents, report);
  const tests = collectTests(sourcesOf(sorted.tests, report), report);

  const upstreams = compileEach(declared.upstreams, (entry) => compileUpstream(entry, env, report));
  const tools = compileEach(declared.tools, (entry) => {
    const upstream = entry.value?.upstream ?? '';
    return compileTool(entry, { compiled: upstreams.get(upstream), raw: targetOf(declared, upstream) }, report);
  });
  const agents = compileEach(declared.agents, (entry) => compileAgent(entry, env, { tools, upstreams }, report));
  const people = compileEach(declared.people, (entry) => compilePerson(entry, env, report));
  link(declared, { upstreams, tools, agents, people }, report);
  const read = [...sorted.policies.map(({ file }) => file), ...sorted.documents.values()];
  const version = versionOf(read);
  return { policies: freezeDeeply({ version, files: namesOf(read), upstreams, tools, agents, people }), tests };
}

function sourcesOf(files: readonly ParsedFile[], report: Report): Source[] {
  return files.flatMap(({ file, parsed }) => {
    if (isStrayDocument(file)) {
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
  declared: ReadonlyMap<string, Declared<T>>,
  compileOne: (entry: Declared<T>) => R | undefined,
): Map<string, R> {
  const compiled = new Map<string, R>();
  for (const [name, entry] of declared) {
    const value = compileOne(entry);
    if (value !== undefined) compiled.set(name, value);
  }
  return compiled;
}

/** Where a tool's requests go, as declared: unresolved, so that a contract's digest holds no secret. */
function targetOf(declared: Declarations, upstream: string): unknown {
  const value = declared.upstreams.get(upstream)?.value;
  return value && { adapter: value.adapter, url: value.url, command: value.command, expose: value.expose };
}

function namesOf(files: readonly PolicyFile[]): string[] {
  return files.map(({ name }) => name).sort();
}

/** Over names and bytes as they were read; what the environment fills in is secret and no part of it. */
function versionOf(files: readonly PolicyFile[]): string {
  const hash = createHash('sha256');
  for (const { name, bytes } of [...files].sort((a, b) => (a.name < b.name ? -1 : 1))) {
    hash.update(`${Buffer.byteLength(name)}:${name}${bytes.length}:`).update(bytes);
  }
  return hash.digest('hex').slice(0, 16);
}
