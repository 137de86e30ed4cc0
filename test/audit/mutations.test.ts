import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { directory, oncegate } from '../cli/terminal.ts';
import { generator, keep, MUTATIONS, missed, textOf, verify } from './mutations.ts';

describe('an export', () => {
  it('that was left alone is good, whatever checkpoint of it somebody kept', () => {
    const random = generator(11);
    for (const [size, every] of [
      [1, 1],
      [2, 5],
      [255, 7],
      [256, 256],
      [300, 40],
    ] as const) {
      const kept = keep(size, every, random);
      for (const checkpoint of [undefined, ...kept.checkpoints.values()]) {
        const verdict = verify(Buffer.from(textOf(kept.lines)), { key: kept.key.verifier, checkpoint }, random);
        expect(verdict).toMatchObject({ isGood: true, entries: size, proved: size, fault: null });
      }
    }
  });

  it.each(Object.keys(MUTATIONS))('is found out, and the first bad entry named, when %s', (name) => {
    const random = generator(name.length);
    const wrong: string[] = [];
    for (let round = 0; round < 10; round++) {
      const kept = keep(1 + Math.floor(random() * 60), 1 + Math.floor(random() * 30), random);
      for (let i = 0; i < 25; i++) wrong.push(...[missed(kept, name, random)].filter((text) => text !== undefined));
    }
    expect(wrong).toEqual([]);
  });
});

it('a terminal sees how far it is, and how fast', async () => {
  const kept = keep(500, 100, generator(3));
  const cwd = await directory({});
  await writeFile(join(cwd, 'log.jsonl'), textOf(kept.lines));
  const said = await oncegate(['audit', 'verify', 'log.jsonl'], { cwd, isTty: true, env: { NO_COLOR: '1' } });
  expect(said.code).toBe(0);
  expect(said.out).toMatch(/^good\t500 entries\n[\d,]+ entries\/s\n$/);
  expect(said.err).toContain('compare it with the one you know');
});
