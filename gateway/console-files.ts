import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ConsoleFile } from './http/console-routes.ts';

/** The files that a browser needs; type declarations are not served. */
const SERVED_FILES = /\.(?:html|css|js|svg)$/;

/** Reads the files of the console once; a change on disk takes effect at the next start. */
export async function readConsoleFiles(dir: string): Promise<ConsoleFile[]> {
  const names = (await readdir(dir, { recursive: true })).filter((name) => SERVED_FILES.test(name)).sort();
  return Promise.all(
    names.map(async (name) => ({ name: name.replaceAll('\\', '/'), bytes: await readFile(join(dir, name)) })),
  );
}
