import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** The folders and files that `tsconfig.build.json` compiles, and the files that configure the build. */
const SOURCES = ['gateway', 'adapters', 'demo'];
const FILES = ['test/audit/sealer.ts', 'tsconfig.json', 'tsconfig.build.json', 'package-lock.json'];
/** The compiler's record of its last build. The record changes when the sources change. */
const BUILD_RECORD = 'dist/.tsbuildinfo';
/** Holds a hash of the sources and of the build record, written after each build by this module. */
const STAMP = 'dist/.built-from';

/** Builds `dist` unless it was built from exactly these sources, because tests run the gateway from `dist`. */
export async function buildIfStale(): Promise<void> {
  if ((await readFile(STAMP, 'utf8').catch(() => '')) === (await hashBuild())) return;
  await promisify(execFile)('npm', ['run', '--silent', 'build']).catch((error: { stdout?: string }) => {
    throw new Error(`The build failed, so the tests have nothing to run.\n${error.stdout ?? error}`);
  });
  await writeFile(STAMP, await hashBuild());
}

async function hashBuild(): Promise<string> {
  const listed = await Promise.all(SOURCES.map((folder) => readdir(folder, { recursive: true, withFileTypes: true })));
  const files = listed.flat().filter((entry) => entry.isFile());
  const paths = [...files.map(({ parentPath, name }) => join(parentPath, name)), ...FILES, BUILD_RECORD].sort();
  const contents = await Promise.all(paths.map((path) => readFile(path).catch(() => '')));
  const hash = createHash('sha256');
  for (const [index, path] of paths.entries())
    hash
      .update(`${path}\0`)
      .update(contents[index] ?? '')
      .update('\0');
  return hash.digest('hex');
}
