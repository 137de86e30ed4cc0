#!/usr/bin/env node
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const program = at('../dist/gateway/cli/main.js');

/** A fresh clone has no dist/. Standard output is left to the verb: whoever reads it may expect JSON. */
function build() {
  const compiler = at('../node_modules/.bin/tsc');
  const root = at('..');
  if (!existsSync(at('../tsconfig.build.json'))) return `${program} is missing: install oncegate again.`;
  if (!existsSync(compiler)) return `Oncegate is not built yet, and its compiler is missing: run "npm ci" in ${root}`;
  process.stderr.write('oncegate: building dist/, once …\n');
  // What it says was emitted is not there: the compiler would believe it and emit nothing.
  rmSync(at('../dist/.tsbuildinfo'), { force: true });
  const options = ['-p', 'tsconfig.build.json', '--noEmitOnError'];
  const { status, error } = spawnSync(compiler, options, { cwd: root, stdio: ['ignore', 2, 2] });
  if (status === 0 && existsSync(program)) return undefined;
  return `Oncegate could not be built${error ? ` (${error.message})` : ''}: run "npm ci && npm run build" in ${root}`;
}

const fault = existsSync(program) ? undefined : build();
if (fault === undefined) {
  // In this very process: a signal sent to it reaches the gateway, with nobody in between.
  const { main } = await import(program);
  await main();
} else {
  process.stderr.write(`oncegate: ${fault}\n`);
  process.exitCode = 1;
}
