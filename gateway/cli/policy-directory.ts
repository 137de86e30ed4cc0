import { isAbsolute, join, relative, resolve } from 'node:path';
import type { Config } from '../config.ts';
import type { Policies } from '../domain/policy.ts';
import type { LoadResult } from '../policy/load-policies.ts';
import type { PolicyTest } from '../policy/policy-tests.ts';
import { type Invocation, type Io, VerbError } from './verb.ts';

// The YAML parser is imported only when needed: the other verbs then start in half the time.

export interface PolicyDirectory {
  /** Relative to the working directory if it lies below it. */
  readonly dir: string;
  /** How many files were read. */
  readonly files: number;
  readonly loaded: LoadResult;
}

export async function loadConfig(io: Io): Promise<Config> {
  const { ConfigError, readConfig } = await import('../config.ts');
  try {
    return await readConfig(io.env, io.cwd);
  } catch (error) {
    if (error instanceof ConfigError)
      throw new VerbError('bad_config', error.faults.join('\n'), { faults: error.faults });
    throw error;
  }
}

/** Loads the directory of the first operand, else the configured one. The result may hold faults. */
export async function readPolicyDirectory({ io, operands }: Invocation): Promise<PolicyDirectory> {
  const config = await loadConfig(io);
  const { compilePolicies } = await import('../policy/load-policies.ts');
  const { readPolicyFiles } = await import('../policy/read-policy-files.ts');
  const dir = operands[0] === undefined ? config.policiesDir : resolve(io.cwd, operands[0]);
  const shown = shortenPath(io.cwd, dir);
  const { files: found, faults } = await readPolicyFiles(dir);
  const loaded = compilePolicies(
    found.map((file) => ({ ...file, file: join(shown, file.name) })),
    config.env,
    faults.map((fault) => ({ ...fault, file: shortenPath(io.cwd, fault.file) })),
  );
  const files = found.filter(({ name }) => !name.endsWith('.json')).length;
  return { dir: shown, files, loaded };
}

/** Like `readPolicyDirectory`, but throws if the policies have faults. */
export async function readValidPolicies(
  invocation: Invocation,
): Promise<{ dir: string; policies: Policies; tests: readonly PolicyTest[] }> {
  const { dir, loaded } = await readPolicyDirectory(invocation);
  if (loaded.ok) return { dir, policies: loaded.policies, tests: loaded.tests };
  const { formatFault } = await import('../policy/load-policies.ts');
  throw new VerbError('bad_policies', loaded.faults.map(formatFault).join('\n'), { faults: loaded.faults });
}

function shortenPath(cwd: string, path: string): string {
  const below = relative(cwd, path);
  if (below === '') return '.';
  return below.startsWith('..') || isAbsolute(below) ? path : below;
}
