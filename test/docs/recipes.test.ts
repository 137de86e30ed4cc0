import { readdir, readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { readBlocks } from './blocks.ts';

const PAGE = 'docs/guides/frameworks.md';
const RECIPES = 'clients/recipes';

test(`${PAGE} contains every recipe word for word, and no other programs`, async () => {
  const programs = (await readBlocks(PAGE)).filter(({ language }) => ['ts', 'python'].includes(language));
  const recipes = await Promise.all((await readdir(RECIPES)).map((name) => readFile(`${RECIPES}/${name}`, 'utf8')));
  expect(recipes.length).toBeGreaterThan(10);
  expect(programs.map(({ text }) => text).sort()).toEqual(recipes.sort());
});
