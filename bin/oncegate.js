#!/usr/bin/env node
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const resolvePath = (path) => fileURLToPath(new URL(path, import.meta.url));
const program = resolvePath('../dist/gateway/cli/main.js');

/** Builds dist/ in a fresh clone. Prints to standard error only, because standard output may have to be JSON. */
function build() {
  const compiler = resolvePath('../node_modules/.bin/tsc');
  const root = resolvePath('..');
  if (!existsSync(resolvePath('../tsconfig.build.json'))) return `${program} is missing. Install oncegate again.`;
  if (!existsSync(compiler)) return `Oncegate is not built, and its compiler is missing. Run "npm ci" in ${root}`;
  process.stderr.write('oncegate: building dist/ (only the first time) …\n');
  // An old .tsbuildinfo would make the compiler skip files that are missing from dist/.
  rmSync(resolvePath('../dist/.tsbuildinfo'), { force: true });
  const options = ['-p', 'tsconfig.build.json', '--noEmitOnError'];
  const { status, error } = spawnSync(compiler, options, { cwd: root, stdio: ['ignore', 2, 2] });
  if (status === 0 && existsSync(program)) return undefined;
  return `Oncegate could not be built${error ? ` (${error.message})` : ''}. Run "npm ci && npm run build" in ${root}`;
}

const fault = existsSync(program) ? undefined : build();
if (fault === undefined) {
  // Run in this process, so that a signal reaches the gateway directly.
  const { main } = await import(program);
  await main();
} else {
  process.stderr.write(`oncegate: ${fault}\n`);
  process.exitCode = 1;
}
