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

describe('the verification of an export', () => {
  it('accepts an unchanged export with any of its checkpoints', () => {
    const random = createRandom(11);
    for (const [size, every] of [
      [1, 1],
      [2, 5],
      [255, 7],
      [256, 256],
      [300, 40],
    ] as const) {
      const signedExport = buildSignedExport(size, every, random);
      for (const checkpoint of [undefined, ...signedExport.checkpoints.values()]) {
        const verdict = verifyInChunks(
          Buffer.from(joinLines(signedExport.lines)),
          { key: signedExport.key.verifier, checkpoint },
          random,
        );
        expect(verdict).toMatchObject({ isGood: true, entries: size, proved: size, fault: null });
      }
    }
  });

  it.each(Object.keys(MUTATIONS))('detects the change and names the first bad entry: %s', (name) => {
    const random = createRandom(name.length);
    const wrongVerdicts: string[] = [];
    for (let round = 0; round < 10; round++) {
      const signedExport = buildSignedExport(1 + Math.floor(random() * 60), 1 + Math.floor(random() * 30), random);
      for (let i = 0; i < 25; i++)
        wrongVerdicts.push(...[findMissedDetection(signedExport, name, random)].filter((text) => text !== undefined));
    }
    expect(wrongVerdicts).toEqual([]);
  });
});

it('an export without a public key is not verified', () => {
  const signedExport = buildSignedExport(3, 3, createRandom(5));
  for (const trusted of [{}, { checkpoint: signedExport.newest }]) {
    const verifier = new ExportVerifier(undefined, trusted);
    verifier.feed(Buffer.from(joinLines(signedExport.lines)));
    const reason = 'there is no public key to verify the export with';
    expect(verifier.finish()).toMatchObject({ isGood: false, proved: 0, fault: { entry: null, why: reason } });
  }
});

describe('an export from a stream that can be read only once', () => {
  const signedExport = buildSignedExport(300, 100, createRandom(7));
  const good = joinLines(signedExport.lines);
  const changed = joinLines(signedExport.lines.with(150, (signedExport.lines[150] ?? '').replace('"bot"', '"bob"')));
  const splitText = (text: string) => text.match(/.{1,1000}/gs) ?? [];
  const listSpoolFiles = async () => (await readdir(tmpdir())).filter((name) => name.startsWith('oncegate-spool-'));

  const readers = {
    '-': async (text: string, cwd: string, argv: readonly string[]) =>
      runCli(['audit', 'verify', '-', ...argv], { cwd, stdin: Readable.from(splitText(text)) }),
    'a named pipe': async (text: string, cwd: string, argv: readonly string[]) => {
      execFileSync('mkfifo', [join(cwd, 'pipe')]);
      const [result] = await Promise.all([
        runCli(['audit', 'verify', 'pipe', ...argv], { cwd }),
        writeFile(join(cwd, 'pipe'), text),
      ]);
      return result;
    },
  } as const;

  it.each(
    Object.entries(readers).flatMap(([source, read]) => [
      { source, read, options: [] },
      { source, read, options: ['--checkpoint', 'kept'] },
    ]),
  )('is verified like a file: $source $options', async ({ read, options }) => {
    const files = { kept: signedExport.checkpoints.get(200) ?? '' };
    const spoolFilesBefore = await listSpoolFiles();
    const accepted = await read(good, await createDirectory(files), [...options, '--json']);
    const { verifier: publicKey } = signedExport.key;
    expect(JSON.parse(accepted.out)).toEqual({ good: true, entries: 300, proved: 300, publicKey, fault: null });
    expect(accepted.code).toBe(0);
    const rejected = await read(changed, await createDirectory(files), [...options, '--json']);
    expect(JSON.parse(rejected.out)).toMatchObject({ good: false, proved: 100, fault: { entry: 150, upTo: 150 } });
    expect(rejected.code).toBe(1);
    expect(await listSpoolFiles()).toEqual(spoolFilesBefore);
  });

  it('is refused if it is empty or a directory', async () => {
    const cwd = await createDirectory({});
    const nothing = await runCli(['audit', 'verify', '-', '--json'], { cwd });
    expect([nothing.code, JSON.parse(nothing.out)]).toMatchObject([1, { good: false, publicKey: null }]);
    expect((await runCli(['audit', 'verify', '.'], { cwd })).err).toContain('cannot be read: EISDIR');
  });
});

it('audit verify prints its rate on a terminal', async () => {
  const signedExport = buildSignedExport(500, 100, createRandom(3));
  const cwd = await createDirectory({});
  await writeFile(join(cwd, 'log.jsonl'), joinLines(signedExport.lines));
  const result = await runCli(['audit', 'verify', 'log.jsonl'], { cwd, isTty: true, env: { NO_COLOR: '1' } });
  expect(result.code).toBe(0);
  expect(result.out).toMatch(/^good\t500 entries\n[\d,]+ entries\/s\n$/);
  expect(result.err).toContain('Compare it with the key that you know');
});
