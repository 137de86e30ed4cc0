import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** Unit tests that take about ten seconds each. `npm run test:unit` leaves them out. */
export const SLOW_UNIT_TESTS = [
  'test/policy/fuzz.test.ts',
  'test/policy/input-schema.test.ts',
  'test/policy/openapi-property.test.ts',
];

/** Modules that start processes, databases or browsers. A test that imports one of them, even indirectly, is not a unit test. */
const STARTS_PROCESSES =
  /^(node:child_process|vitest\/node|playwright-core)$|\/(embedded-postgres|database|mcp-stdio-transport)\.ts$/;
/** How a test gets the URL of the suite's PostgreSQL to connect directly. */
const USES_POSTGRES = "inject('postgresUrl')";
/** Matches imports that exist at run time. Type-only imports do not. */
const IMPORTED = /^(?:import|export)\s(?!type\s)[^;']*'([^']+)'|\bimport\('([^']+)'\)/gm;

/** The test files below `folder` that need neither a process nor a database, judged by their imports. */
export function findUnitTests(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.test.ts') && !name.includes('node_modules'))
    .map((name) => join(folder, name))
    .filter((file) => !startsProcesses(file, folder, new Set()))
    .sort();
}

function startsProcesses(file: string, folder: string, seen: Set<string>): boolean {
  if (seen.has(file) || !existsSync(file)) return false;
  seen.add(file);
  const text = readFileSync(file, 'utf8');
  if (text.includes(USES_POSTGRES)) return true;
  const imported = [...text.matchAll(IMPORTED)].map(([, name, dynamic]) => name ?? dynamic ?? '');
  return imported.some((name) => {
    if (STARTS_PROCESSES.test(name)) return true;
    const path = name.startsWith('.') ? join(dirname(file), name) : '';
    return path.startsWith(`${folder}/`) && startsProcesses(path, folder, seen);
  });
}
