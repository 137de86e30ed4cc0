import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { readConfig } from '../../gateway/config.ts';
import { createDirectory } from '../cli/terminal.ts';

const read = async (config: string) => readConfig({}, await createDirectory({ 'oncegate.yaml': config }));

it('default limits match the docs, and allow one of several agents a thousand concurrent requests', async () => {
  const { limits } = await read('');
  const docs = await readFile('docs/reference/configuration.md', 'utf8');
  const [shown] = /^limits: \{.*\}$/m.exec(docs) ?? [];
  expect((await read(`${shown}\n`)).limits).toEqual(limits);
  const [, listed] = /^\| `limits\.inflight` .*?\| `(\d+)` /m.exec(docs) ?? [];
  expect(Number(listed)).toBe(limits.inflight);
  expect(limits.inflight / 2).toBe(1_000);
});
