import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ConsoleFile } from './http/console-routes.ts';

/** What a browser is given; types for the compiler and the like stay behind. */
const SERVED = /\.(?:html|css|js|svg)$/;

/** The files of the console, read once: whoever replaces them on disk replaces them with the next start. */
export async function readConsole(dir: string): Promise<ConsoleFile[]> {
  const names = (await readdir(dir, { recursive: true })).filter((name) => SERVED.test(name)).sort();
  return Promise.all(
    names.map(async (name) => ({ name: name.replaceAll('\\', '/'), bytes: await readFile(join(dir, name)) })),
  );
}
