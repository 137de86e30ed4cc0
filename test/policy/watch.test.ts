import { mkdir, mkdtemp, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { LoadResult } from '../../gateway/policy/load-policies.ts';
import { watchPolicies } from '../../gateway/policy/watch-policies.ts';
import { UPSTREAM_YAML } from './example.ts';

/** Watches a new directory and collects the results of its loads. */
async function watchNewDirectory(pollMs?: number) {
  const dir = await mkdtemp(path.join(tmpdir(), 'oncegate-watch-'));
  await writeFile(path.join(dir, 'a.yaml'), UPSTREAM_YAML);
  const results: LoadResult[] = [];
  const waiting: ((loaded: LoadResult) => void)[] = [];
  const watch = watchPolicies({
    dir,
    env: {},
    ...(pollMs !== undefined && { pollMs }),
    onChange: (loaded) => {
      const next = waiting.shift();
      if (next === undefined) results.push(loaded);
      else next(loaded);
    },
  });
  onTestFinished(async () => {
    await watch.close();
    await rm(dir, { recursive: true });
  });
  const next = (): Promise<LoadResult> => {
    const already = results.shift();
    return already === undefined ? new Promise((resolve) => waiting.push(resolve)) : Promise.resolve(already);
  };
  return { dir, watch, next, results };
}

const toolNames = (loaded: LoadResult): string[] => (loaded.ok ? [...loaded.policies.tools.keys()] : ['faults']);
const TOOL = 'tools:\n  t: { upstream: u }\n';

test('a change on disk is loaded and passed on, with or without faults', async () => {
  const { dir, watch, next } = await watchNewDirectory();
  expect(toolNames(await watch.reload())).toEqual([]);
  expect(toolNames(await next())).toEqual([]);

  await writeFile(path.join(dir, 'b.yaml'), TOOL);
  expect(toolNames(await next())).toEqual(['t']);

  await writeFile(path.join(dir, 'b.yaml'), 'tools: [');
  expect(toolNames(await next())).toEqual(['faults']);

  await rm(path.join(dir, 'b.yaml'));
  expect(toolNames(await next())).toEqual([]);
});

test('new directories, moved files and swapped links are noticed', async () => {
  const { dir, watch, next } = await watchNewDirectory(200);
  await watch.reload();
  await next();
  await mkdir(path.join(dir, 'later'));
  await writeFile(path.join(dir, 'later', 'b.yaml.tmp'), TOOL);
  await rename(path.join(dir, 'later', 'b.yaml.tmp'), path.join(dir, 'later', 'b.yaml'));
  expect(toolNames(await next())).toEqual(['t']);

  await writeFile(path.join(dir, 'other'), TOOL.replace('t:', 'x:'));
  await symlink(path.join(dir, 'other'), path.join(dir, 'link'));
  await rm(path.join(dir, 'later', 'b.yaml'));
  await rename(path.join(dir, 'link'), path.join(dir, 'linked.yaml'));
  let names = toolNames(await next());
  if (names.length === 0) names = toolNames(await next());
  expect(names).toEqual(['x']);
});

test('a change of an imported document is noticed', async () => {
  const { dir, watch, next } = await watchNewDirectory(200);
  const document = (id: string) => JSON.stringify({ openapi: '3.1.0', paths: { '/a': { get: { operationId: id } } } });
  await writeFile(path.join(dir, 'a.json'), document('one'));
  await writeFile(path.join(dir, 'a.yaml'), UPSTREAM_YAML.replace(' }', ', import: a.json }'));
  await watch.reload();
  await next();
  await writeFile(path.join(dir, 'a.json'), document('two'));
  let names = toolNames(await next());
  if (names[0] === 'u.one') names = toolNames(await next());
  expect(names).toEqual(['u.two']);
});

test('a change is noticed without a first reload', async () => {
  const { dir, next } = await watchNewDirectory(100);
  let count = 0;
  const writing = setInterval(() => void writeFile(path.join(dir, 'b.yaml'), `${TOOL}# ${count++}\n`), 150);
  expect(toolNames(await next())).toEqual(['t']);
  clearInterval(writing);
});

test('reloads run one at a time, and nothing is passed on after close', async () => {
  const { dir, watch, results } = await watchNewDirectory();
  const loads = await Promise.all(Array.from({ length: 10 }, () => watch.reload()));
  expect(loads.every((loaded) => loaded.ok)).toBe(true);
  expect(results).toHaveLength(10);
  await watch.close();
  await writeFile(path.join(dir, 'b.yaml'), TOOL);
  await watch.reload();
  expect(results).toHaveLength(10);
});
