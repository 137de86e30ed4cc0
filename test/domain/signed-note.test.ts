import { generateKeyPairSync } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { hashLeaf } from '../../gateway/domain/audit/audit.ts';
import { NoteError, NoteSigner, NoteVerifier, parseLogCheckpoint } from '../../gateway/domain/audit/signed-note.ts';

const pem = () => generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
const key = NoteSigner.fromPem('oncegate/log', pem());
const verifier = new NoteVerifier(key.verifier);
const root = hashLeaf('x');

describe('a checkpoint', () => {
  it('is a signed note: origin, size, root, an empty line, a signature', () => {
    const note = key.sign(42, root);
    const lines = note.split('\n');
    expect(lines.slice(0, 4)).toEqual(['oncegate/log', '42', root.toString('base64'), '']);
    expect(lines[4]).toMatch(/^\u2014 oncegate\/log [A-Za-z0-9+/]+=*$/);
    expect(lines).toHaveLength(6);
    expect(verifier.verifyCheckpoint(note)).toEqual({ origin: 'oncegate/log', size: 42, root });
  });

  it('verifies a note and key that others published', () => {
    // From the documentation of the Go package golang.org/x/mod/sumdb/note.
    const known = new NoteVerifier('PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW');
    const note =
      'If you think cryptography is the answer to your problem,\n' +
      "then you don't know what your problem is.\n\n" +
      '\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n';
    expect(known.hasSigned(note)).toBe(true);
    expect(known.hasSigned(note.replace('answer', 'Answer'))).toBe(false);
  });

  it('is refused when any byte changes', () => {
    const note = key.sign(42, root);
    for (let at = 0; at < note.length; at++) {
      const bent = `${note.slice(0, at)}${note[at] === 'A' ? 'B' : 'A'}${note.slice(at + 1)}`;
      expect(() => verifier.verifyCheckpoint(bent), `byte ${at}`).toThrow(NoteError);
    }
    expect(() => verifier.verifyCheckpoint(note.slice(0, -1))).toThrow(NoteError);
    expect(() => verifier.verifyCheckpoint(`${note}\n`)).toThrow(NoteError);
  });

  it('of another key, or of another log with the same key, is refused', () => {
    const sameName = NoteSigner.fromPem('oncegate/log', pem());
    expect(() => verifier.verifyCheckpoint(sameName.sign(42, root))).toThrow('does not bear the signature');
    const shared = pem();
    const one = new NoteVerifier(NoteSigner.fromPem('one', shared).verifier);
    expect(() => one.verifyCheckpoint(NoteSigner.fromPem('two', shared).sign(1, root))).toThrow(
      'belongs to the log two, not to one',
    );
  });

  it('carries the cosignatures of several witnesses', () => {
    const witness = NoteSigner.fromPem('witness.example', pem(), 'witness');
    const note = key.sign(42, root);
    const cosigned = note + witness.cosign(note, 1_700_000_000);
    expect(verifier.verifyCheckpoint(cosigned).size).toBe(42);
    expect(new NoteVerifier(witness.verifier).hasSigned(cosigned)).toBe(true);
    expect(new NoteVerifier(witness.verifier).hasSigned(note)).toBe(false);
    const other = key.sign(43, root) + witness.cosign(note, 1_700_000_000);
    expect(new NoteVerifier(witness.verifier).hasSigned(other)).toBe(false);
  });
});

it.each([
  '',
  'x',
  'a b+00000000+AAAA',
  key.verifier.slice(0, -4),
  key.verifier.replace(/\+[0-9a-f]{8}\+/, '+00000000+'),
])('is not a public key: %s', (text) => {
  expect(() => new NoteVerifier(text)).toThrow(NoteError);
});

it.each(['', 'a\n1\nb\n', 'a\n-1\nAAAA\n\n\u2014 a AAAAAAAA\n', 'a\n01\nAAAA\n\n\u2014 a AAAAAAAA\n'])(
  'is not a checkpoint: %j',
  (text) => {
    expect(() => parseLogCheckpoint(text)).toThrow(NoteError);
  },
);
