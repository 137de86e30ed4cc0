import { execFileSync } from 'node:child_process';
import { readdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { ExportVerifier } from '../../gateway/domain/audit/audit-export.ts';
import { createDirectory, runCli } from '../cli/terminal.ts';
import { createRandom } from '../support/random.ts';
import { buildSignedExport, findMissedDetection, joinLines, MUTATIONS, verifyInChunks } from './mutations.ts';

describe('an export', () => {
  it('that was left alone is good, whatever checkpoint of it somebody kept', () => {
    const random = createRandom(11);
    for (const [size, every] of [
      [1, 1],
      [2, 5],
      [255, 7],
      [256, 256],
      [300, 40],
    ] as const) {
      const kept = buildSignedExport(size, every, random);
      for (const checkpoint of [undefined, ...kept.checkpoints.values()]) {
        const verdict = verifyInChunks(
          Buffer.from(joinLines(kept.lines)),
          { key: kept.key.verifier, checkpoint },
          random,
        );
        expect(verdict).toMatchObject({ isGood: true, entries: size, proved: size, fault: null });
      }
    }
  });

  it.each(Object.keys(MUTATIONS))('is found out, and the first bad entry named, when %s', (name) => {
    const random = createRandom(name.length);
    const wrong: string[] = [];
    for (let round = 0; round < 10; round++) {
      const kept = buildSignedExport(1 + Math.floor(random() * 60), 1 + Math.floor(random() * 30), random);
      for (let i = 0; i < 25; i++)
        wrong.push(...[findMissedDetection(kept, name, random)].filter((text) => text !== undefined));
    }
    expect(wrong).toEqual([]);
  });
});

it('no export is good that no key was there for, or no signature', () => {
  const kept = buildSignedExport(3, 3, createRandom(5));
  for (const trusted of [{}, { checkpoint: kept.newest }]) {
    const verifier = new ExportVerifier(undefined, trusted);
    verifier.feed(Buffer.from(joinLines(kept.lines)));
    const why = 'there is no public key to verify the export with';
    expect(verifier.finish()).toMatchObject({ isGood: false, proved: 0, fault: { entry: null, why } });
  }
});

describe('an export that can be read only once', () => {
  const kept = buildSignedExport(300, 100, createRandom(7));
  const good = joinLines(kept.lines);
  const bent = joinLines(kept.lines.with(150, (kept.lines[150] ?? '').replace('"bot"', '"bob"')));
  const pieces = (text: string) => text.match(/.{1,1000}/gs) ?? [];
  const spools = async () => (await readdir(tmpdir())).filter((name) => name.startsWith('oncegate-spool-'));

  /** From standard input, and from a named pipe. */
  const ways = {
    '-': async (text: string, cwd: string, argv: readonly string[]) =>
      runCli(['audit', 'verify', '-', ...argv], { cwd, stdin: Readable.from(pieces(text)) }),
    'a named pipe': async (text: string, cwd: string, argv: readonly string[]) => {
      execFileSync('mkfifo', [join(cwd, 'pipe')]);
      const [said] = await Promise.all([
        runCli(['audit', 'verify', 'pipe', ...argv], { cwd }),
        writeFile(join(cwd, 'pipe'), text),
      ]);
      return said;
    },
  } as const;

  it.each(
    Object.entries(ways).flatMap(([way, read]) => [
      { way, read, options: [] },
      { way, read, options: ['--checkpoint', 'kept'] },
    ]),
  )('is verified as a file is: $way $options', async ({ read, options }) => {
    const files = { kept: kept.checkpoints.get(200) ?? '' };
    const left = await spools();
    const told = await read(good, await createDirectory(files), [...options, '--json']);
    const { verifier: publicKey } = kept.key;
    expect(JSON.parse(told.out)).toEqual({ good: true, entries: 300, proved: 300, publicKey, fault: null });
    expect(told.code).toBe(0);
    const found = await read(bent, await createDirectory(files), [...options, '--json']);
    expect(JSON.parse(found.out)).toMatchObject({ good: false, proved: 100, fault: { entry: 150, upTo: 150 } });
    expect(found.code).toBe(1);
    expect(await spools()).toEqual(left);
  });

  it('and is none: nothing, or a directory', async () => {
    const cwd = await createDirectory({});
    const nothing = await runCli(['audit', 'verify', '-', '--json'], { cwd });
    expect([nothing.code, JSON.parse(nothing.out)]).toMatchObject([1, { good: false, publicKey: null }]);
    expect((await runCli(['audit', 'verify', '.'], { cwd })).err).toContain('cannot be read: EISDIR');
  });
});

it('a terminal sees how far it is, and how fast', async () => {
  const kept = buildSignedExport(500, 100, createRandom(3));
  const cwd = await createDirectory({});
  await writeFile(join(cwd, 'log.jsonl'), joinLines(kept.lines));
  const said = await runCli(['audit', 'verify', 'log.jsonl'], { cwd, isTty: true, env: { NO_COLOR: '1' } });
  expect(said.code).toBe(0);
  expect(said.out).toMatch(/^good\t500 entries\n[\d,]+ entries\/s\n$/);
  expect(said.err).toContain('Compare it with the key that you know');
});
