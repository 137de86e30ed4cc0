import { type ChildProcess, spawn } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { CheckpointFiles } from '../../adapters/checkpoint-files.ts';
import { hashLeaf } from '../../gateway/domain/audit/audit.ts';
import { Frontier, Proof, type StoredHash, StoredHashes } from '../../gateway/domain/audit/merkle.ts';
import { NoteSigner, NoteVerifier } from '../../gateway/domain/audit/signed-note.ts';
import { WitnessServer } from '../../gateway/witness-server.ts';
import type { Reply } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';
import { uniqueId } from '../support/unique-id.ts';
import { createDatabaseForTest, useGateway } from '../support/use-gateway.ts';

const newKey = () => generateKeyPairSync('ed25519').privateKey;

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'oncegate-witness-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

describe('a witness', () => {
  const key = new NoteSigner('log.example', newKey());
  const witnessKey = new NoteSigner('witness.example', newKey(), 'witness');
  const cosigner = new NoteVerifier(witnessKey.verifier);

  /** A log of so many entries, and what it would say of itself. */
  function log(size: number, entry = (i: number) => `entry ${i}`, signer = key) {
    const frontier = new Frontier();
    const stored: StoredHash[] = [];
    for (let index = 0; index < size; index++) {
      const hash = hashLeaf(entry(index));
      stored.push({ level: 0, index, hash });
      frontier.append(hash, (node) => stored.push(node));
    }
    const proofFrom = (old: number) => Proof.consistency(old, size).computeHashes(new StoredHashes(stored));
    return { note: signer.sign(size, frontier.computeRoot()), proofFrom };
  }

  const question = (old: number, { note, proofFrom }: ReturnType<typeof log>, proof = proofFrom(old)) =>
    `${[`old ${old}`, ...proof.map((hash) => hash.toString('base64'))].join('\n')}\n\n${note}`;
  const open = () => new WitnessServer(witnessKey, [key.verifier], directory);

  it('cosigns what extends what it saw, and remembers it', async () => {
    let witness = open();
    for (const [old, size] of [
      [0, 3],
      [3, 3],
      [3, 40],
      [40, 300],
    ] as const) {
      const shown = log(size);
      const answer = await witness.addCheckpoint(question(old, shown));
      expect([old, size, answer.status]).toEqual([old, size, 200]);
      expect(cosigner.hasSigned(shown.note + answer.body)).toBe(true);
      // Across its restarts.
      witness = open();
    }
  });

  it('refuses everything else, and keeps what it had', async () => {
    const witness = open();
    await witness.addCheckpoint(question(0, log(50)));
    const forked = (i: number) => (i === 7 ? 'another past' : `entry ${i}`);
    const cases: [string, string, number, string][] = [
      ['an older log', question(20, log(30)), 409, '50\n'],
      ['a wrong old size', question(40, log(60)), 409, '50\n'],
      ['a fork of the same size', question(50, log(50, forked)), 409, '50\n'],
      ['a fork', question(50, log(60, forked)), 422, ''],
      ['a bad proof', question(50, log(60), [hashLeaf('x')]), 422, ''],
      ['no proof', question(50, log(60), []), 422, ''],
      ['an old size beyond it', question(50, log(40), []), 400, ''],
      ['another key', question(50, log(60, undefined, new NoteSigner('log.example', newKey()))), 403, ''],
      ['another log', question(0, log(60, undefined, new NoteSigner('other.example', newKey()))), 404, ''],
      ['nonsense', 'old x\n\nnonsense', 400, ''],
      ['nothing', '', 400, ''],
      ['too many hashes', question(50, log(60), Array(64).fill(hashLeaf('x'))), 400, ''],
    ];
    for (const [name, body, status, says] of cases) {
      const answer = await witness.addCheckpoint(body);
      expect([name, answer.status]).toEqual([name, status]);
      expect(answer.body).toContain(says);
      expect(answer.body).not.toContain('\u2014');
    }
    expect((await witness.addCheckpoint(question(50, log(60)))).status).toBe(200);
  });

  it('asked at once about two futures cosigns one of them', async () => {
    const witness = open();
    await witness.addCheckpoint(question(0, log(50)));
    const other = (i: number) => (i === 55 ? 'another future' : `entry ${i}`);
    const answers = await Promise.all([
      witness.addCheckpoint(question(50, log(60))),
      witness.addCheckpoint(question(50, log(60, other))),
    ]);
    expect(answers.map(({ status }) => status)).toEqual([200, 409]);
  });
});

describe('a gateway with a witness', () => {
  const { upstream, database, gateway } = useGateway({ scope: 'test' });

  /** As somebody else would run it. Port 0 the first time, the same one ever after. */
  async function startWitness(port = 0): Promise<{ child: ChildProcess; url: string; key: string }> {
    const logKey = (await gateway.admin('GET', '/admin/audit/key').catch(() => undefined))?.body.trim() ?? known;
    known = logKey;
    const argv = ['witness', '--log', logKey, '--dir', directory, '--listen', `127.0.0.1:${port}`];
    const child = spawn(process.execPath, [resolve('bin/oncegate.js'), ...argv], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    onTestFinished(() => void child.kill('SIGKILL'));
    const [line] = await once(child.stdout as NodeJS.ReadableStream, 'data');
    const [url = '', key = ''] = String(line).trim().split('\t');
    return { child, url, key };
  }
  let known = '';

  async function sealedCall(): Promise<number> {
    const id = uniqueId('w');
    const call = await gateway.call('world.keyed', { id }, { key: id });
    expect(call.status).toBe(200);
    return (await gateway.admin('GET', `/admin/audit/proof?leaf=${call.body.receipt.leaf}`)).body.size;
  }

  async function readyz(condition: (body: { troubles: string[]; warnings: string[] }) => boolean) {
    const read = () => gateway.request('GET', '/readyz').catch(() => undefined);
    const isRight = (ready?: Reply) => ready !== undefined && condition(ready.body);
    return (await pollUntil(read, isRight, { explain: () => gateway.output }))?.body;
  }

  const cosignedSize = async (key: string): Promise<number> => {
    const note = (await new CheckpointFiles(join(gateway.home, 'data', 'checkpoints')).readNewest()) ?? '';
    return new NoteVerifier(key).hasSigned(note) ? Number(note.split('\n')[1]) : 0;
  };

  it('is cosigned, goes on without it when it is away, and stops when it is contradicted', async () => {
    const { child, url, key } = await startWitness();
    await gateway.stop();
    const anchors = `audit: { anchors: [{ witness: "${url}", key: "${key}", allowPrivate: true }] }\n`;
    await writeFile(join(gateway.home, 'oncegate.yaml'), anchors);
    await gateway.start();
    const size = await sealedCall();
    await pollUntil(
      () => cosignedSize(key),
      (cosigned) => cosigned >= size,
      { explain: () => gateway.output },
    );

    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    await sealedCall();
    const away = await readyz(({ warnings }) => warnings.length > 0);
    expect(away).toMatchObject({ status: 'ready', warnings: [expect.stringContaining('does not cosign')] });

    const again = await startWitness(Number(new URL(url).port));
    expect(again.key).toBe(key);
    await sealedCall();
    await readyz(({ warnings }) => warnings.length === 0);
    await sealedCall();

    // Somebody puts everything back that the gateway has, but not what the witness remembers.
    await gateway.stop();
    await rm(join(gateway.home, 'data', 'checkpoints'), { recursive: true });
    const older = await createDatabaseForTest();
    const [deployment] = await database.query<{ id: string }>('select id from deployment');
    await older.query('insert into deployment (id) values ($1)', [deployment?.id]);
    gateway.launch({ DATABASE_URL: older.url });
    const { troubles } = await readyz((body) => body.troubles.some((text) => text.includes('contradicts')));
    expect(troubles.join()).toMatch(
      /The witness .* contradicts this log: it cosigned \d+ entries, but this log has \d+/,
    );
    const refused = await gateway.call('world.keyed', { id: 'refused' }, { key: 'refused' });
    expect(refused).toMatchObject({ status: 503, body: { code: 'unavailable' } });
    expect(await upstream.effects('refused')).toEqual([]);
    // A person at the gateway cannot overrule it; whoever runs the witness can.
    expect((await gateway.admin('POST', '/admin/audit/accept', { reason: 'x' })).status).toBe(409);
    again.child.kill('SIGKILL');
    await once(again.child, 'exit');
    await rm(directory, { recursive: true });
  });
});
