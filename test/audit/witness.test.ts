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

  /** Builds a log of `size` entries. Returns its signed checkpoint and a function that builds consistency proofs. */
  function buildLog(size: number, entry = (i: number) => `entry ${i}`, signer = key) {
    const frontier = new Frontier();
    const stored: StoredHash[] = [];
    for (let index = 0; index < size; index++) {
      const hash = hashLeaf(entry(index));
      stored.push({ level: 0, index, hash });
      frontier.append(hash, (node) => stored.push(node));
    }
    const buildProof = (old: number) => Proof.consistency(old, size).computeHashes(new StoredHashes(stored));
    return { note: signer.sign(size, frontier.computeRoot()), buildProof };
  }

  const buildRequest = (old: number, { note, buildProof }: ReturnType<typeof buildLog>, proof = buildProof(old)) =>
    `${[`old ${old}`, ...proof.map((hash) => hash.toString('base64'))].join('\n')}\n\n${note}`;
  const createWitness = () => new WitnessServer(witnessKey, [key.verifier], directory);

  it('cosigns a log that extends the last one it saw, and remembers it', async () => {
    let witness = createWitness();
    for (const [old, size] of [
      [0, 3],
      [3, 3],
      [3, 40],
      [40, 300],
    ] as const) {
      const extended = buildLog(size);
      const answer = await witness.addCheckpoint(buildRequest(old, extended));
      expect([old, size, answer.status]).toEqual([old, size, 200]);
      expect(cosigner.hasSigned(extended.note + answer.body)).toBe(true);
      // A new instance imitates a restart.
      witness = createWitness();
    }
  });

  it('refuses everything else and keeps its state', async () => {
    const witness = createWitness();
    await witness.addCheckpoint(buildRequest(0, buildLog(50)));
    const forked = (i: number) => (i === 7 ? 'another past' : `entry ${i}`);
    const cases: [string, string, number, string][] = [
      ['an older log', buildRequest(20, buildLog(30)), 409, '50\n'],
      ['a wrong old size', buildRequest(40, buildLog(60)), 409, '50\n'],
      ['a fork of the same size', buildRequest(50, buildLog(50, forked)), 409, '50\n'],
      ['a fork', buildRequest(50, buildLog(60, forked)), 422, ''],
      ['a bad proof', buildRequest(50, buildLog(60), [hashLeaf('x')]), 422, ''],
      ['no proof', buildRequest(50, buildLog(60), []), 422, ''],
      ['an old size that is larger than the log', buildRequest(50, buildLog(40), []), 400, ''],
      ['another key', buildRequest(50, buildLog(60, undefined, new NoteSigner('log.example', newKey()))), 403, ''],
      ['another log', buildRequest(0, buildLog(60, undefined, new NoteSigner('other.example', newKey()))), 404, ''],
      ['nonsense', 'old x\n\nnonsense', 400, ''],
      ['nothing', '', 400, ''],
      ['too many hashes', buildRequest(50, buildLog(60), Array(64).fill(hashLeaf('x'))), 400, ''],
    ];
    for (const [name, body, status, text] of cases) {
      const answer = await witness.addCheckpoint(body);
      expect([name, answer.status]).toEqual([name, status]);
      expect(answer.body).toContain(text);
      expect(answer.body).not.toContain('\u2014');
    }
    expect((await witness.addCheckpoint(buildRequest(50, buildLog(60)))).status).toBe(200);
  });

  it('cosigns only one of two conflicting extensions that arrive at once', async () => {
    const witness = createWitness();
    await witness.addCheckpoint(buildRequest(0, buildLog(50)));
    const conflicting = (i: number) => (i === 55 ? 'another future' : `entry ${i}`);
    const answers = await Promise.all([
      witness.addCheckpoint(buildRequest(50, buildLog(60))),
      witness.addCheckpoint(buildRequest(50, buildLog(60, conflicting))),
    ]);
    expect(answers.map(({ status }) => status)).toEqual([200, 409]);
  });
});

describe('a gateway with a witness', () => {
  const { upstream, database, gateway } = useGateway({ scope: 'test' });

  /** Starts a witness process. Port 0 chooses a free port; a restart passes the same port again. */
  async function startWitness(port = 0): Promise<{ child: ChildProcess; url: string; key: string }> {
    const logKey = (await gateway.admin('GET', '/admin/audit/key').catch(() => undefined))?.body.trim() ?? lastLogKey;
    lastLogKey = logKey;
    const argv = ['witness', '--log', logKey, '--dir', directory, '--listen', `127.0.0.1:${port}`];
    const child = spawn(process.execPath, [resolve('bin/oncegate.js'), ...argv], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    onTestFinished(() => void child.kill('SIGKILL'));
    const [line] = await once(child.stdout as NodeJS.ReadableStream, 'data');
    const [url = '', key = ''] = String(line).trim().split('\t');
    return { child, url, key };
  }
  let lastLogKey = '';

  async function makeSealedCall(): Promise<number> {
    const id = uniqueId('w');
    const call = await gateway.call('world.keyed', { id }, { key: id });
    expect(call.status).toBe(200);
    return (await gateway.admin('GET', `/admin/audit/proof?leaf=${call.body.receipt.leaf}`)).body.size;
  }

  async function waitForReadyz(isExpected: (body: { troubles: string[]; warnings: string[] }) => boolean) {
    const read = () => gateway.request('GET', '/readyz').catch(() => undefined);
    const isRight = (ready?: Reply) => ready !== undefined && isExpected(ready.body);
    return (await pollUntil(read, isRight, { explain: () => gateway.output }))?.body;
  }

  const readCosignedSize = async (key: string): Promise<number> => {
    const note = (await new CheckpointFiles(join(gateway.home, 'data', 'checkpoints')).readNewest()) ?? '';
    return new NoteVerifier(key).hasSigned(note) ? Number(note.split('\n')[1]) : 0;
  };

  it('gets cosignatures, continues while the witness is down, and stops if the witness contradicts the log', async () => {
    const { child, url, key } = await startWitness();
    await gateway.stop();
    const anchors = `audit: { anchors: [{ witness: "${url}", key: "${key}", allowPrivate: true }] }\n`;
    await writeFile(join(gateway.home, 'oncegate.yaml'), anchors);
    await gateway.start();
    const size = await makeSealedCall();
    await pollUntil(
      () => readCosignedSize(key),
      (cosigned) => cosigned >= size,
      { explain: () => gateway.output },
    );

    child.kill('SIGTERM');
    expect(await once(child, 'exit')).toEqual([0, null]);
    await makeSealedCall();
    const whileDown = await waitForReadyz(({ warnings }) => warnings.length > 0);
    expect(whileDown).toMatchObject({ status: 'ready', warnings: [expect.stringContaining('does not cosign')] });

    const restarted = await startWitness(Number(new URL(url).port));
    expect(restarted.key).toBe(key);
    await makeSealedCall();
    await waitForReadyz(({ warnings }) => warnings.length === 0);
    await makeSealedCall();

    // An attacker resets the database and the anchors of the gateway, but not the memory of the witness.
    await gateway.stop();
    await rm(join(gateway.home, 'data', 'checkpoints'), { recursive: true });
    const older = await createDatabaseForTest();
    const [deployment] = await database.query<{ id: string }>('select id from deployment');
    await older.query('insert into deployment (id) values ($1)', [deployment?.id]);
    gateway.launch({ DATABASE_URL: older.url });
    const { troubles } = await waitForReadyz((body) => body.troubles.some((text) => text.includes('contradicts')));
    expect(troubles.join()).toMatch(
      /The witness .* contradicts this log: it cosigned \d+ entries, but this log has \d+/,
    );
    const refused = await gateway.call('world.keyed', { id: 'refused' }, { key: 'refused' });
    expect(refused).toMatchObject({ status: 503, body: { code: 'unavailable' } });
    expect(await upstream.effects('refused')).toEqual([]);
    // An administrator of the gateway cannot overrule the witness; only the operator of the witness can.
    expect((await gateway.admin('POST', '/admin/audit/accept', { reason: 'x' })).status).toBe(409);
    restarted.child.kill('SIGKILL');
    await once(restarted.child, 'exit');
    await rm(directory, { recursive: true });
  });
});
