import { readdir, readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';

const recipes = new URL('../../clients/recipes/', import.meta.url);

test('every block in docs/guides/frameworks.md is a recipe, word for word, and every recipe is there', async () => {
  const text = await readFile(new URL('../../docs/guides/frameworks.md', import.meta.url), 'utf8');
  const blocks = [...text.matchAll(/^```(?:ts|python)\n(.*?)^```$/gms)].map(([, code]) => code);
  const files = await Promise.all((await readdir(recipes)).map((name) => readFile(new URL(name, recipes), 'utf8')));
  expect(files.length).toBeGreaterThan(10);
  expect(blocks.sort()).toEqual(files.sort());
});
