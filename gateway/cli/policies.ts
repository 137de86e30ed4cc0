import { isAbsolute, join, relative, resolve } from 'node:path';
import type { Config } from '../config.ts';
import type { Policies } from '../domain/policy.ts';
import type { LoadResult } from '../policy/load-policies.ts';
import type { PolicyTest } from '../policy/policy-tests.ts';
import { type Invocation, type Io, NotGood } from './verb.ts';

// What reads YAML is imported only when it is needed: the other verbs start in half the time.

export interface PolicyDirectory {
  /** As a person would name it. */
  readonly dir: string;
  /** How many were read. */
  readonly files: number;
  readonly loaded: LoadResult;
}

export async function configOf(io: Io): Promise<Config> {
  const { ConfigError, readConfig } = await import('../config.ts');
  try {
    return await readConfig(io.env, io.cwd);
  } catch (error) {
    if (error instanceof ConfigError)
      throw new NotGood('bad_config', error.faults.join('\n'), { faults: error.faults });
    throw error;
  }
}

/** The directory that was named, else that of the configuration; good or not. */
export async function readDirectory({ io, operands }: Invocation): Promise<PolicyDirectory> {
  const config = await configOf(io);
  const { compilePolicies } = await import('../policy/load-policies.ts');
  const { readPolicyFiles: readFiles } = await import('../policy/read-policy-files.ts');
  const dir = operands[0] === undefined ? config.policiesDir : resolve(io.cwd, operands[0]);
  const shown = shownFrom(io.cwd, dir);
  const { files: found, faults } = await readFiles(dir);
  const loaded = compilePolicies(
    found.map((file) => ({ ...file, file: join(shown, file.name) })),
    config.env,
    faults.map((fault) => ({ ...fault, file: shownFrom(io.cwd, fault.file) })),
  );
  const files = found.filter(({ name }) => !name.endsWith('.json')).length;
  return { dir: shown, files, loaded };
}

/** The same for whoever can do nothing with bad policies. */
export async function readGoodPolicies(
  invocation: Invocation,
): Promise<{ dir: string; policies: Policies; tests: readonly PolicyTest[] }> {
  const { dir, loaded } = await readDirectory(invocation);
  if (loaded.ok) return { dir, policies: loaded.policies, tests: loaded.tests };
  const { formatFault } = await import('../policy/load-policies.ts');
  throw new NotGood('bad_policies', loaded.faults.map(formatFault).join('\n'), { faults: loaded.faults });
}

function shownFrom(cwd: string, path: string): string {
  const below = relative(cwd, path);
  if (below === '') return '.';
  return below.startsWith('..') || isAbsolute(below) ? path : below;
}
