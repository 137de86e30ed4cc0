import { readdir, readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';

/** A connection prepares the first text of a name. A second text under that name fails, but only on connections that saw the first. */
it('no two statements share a name', async () => {
  const texts = new Map<string, Set<string>>();
  const files = (await readdir('gateway/ledger', { recursive: true })).filter((file) => file.endsWith('.ts'));
  for (const file of files) {
    const source = await readFile(`gateway/ledger/${file}`, 'utf8');
    for (const [, name, rest] of source.matchAll(/name: '([a-z-]+)',\s*text:([\s\S]*?)values:/g)) {
      const seen = texts.get(name ?? '') ?? new Set();
      seen.add((rest ?? '').trim());
      texts.set(name ?? '', seen);
    }
  }
  expect(texts.size).toBeGreaterThan(50);
  const shared = [...texts].filter(([, seen]) => seen.size > 1).map(([name]) => name);
  expect(shared).toEqual([]);
});
