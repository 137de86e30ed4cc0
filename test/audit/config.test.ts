import { generateKeyPairSync } from 'node:crypto';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ConfigError, readConfig } from '../../gateway/config.ts';
import { NoteSigner } from '../../gateway/domain/audit/signed-note.ts';
import { createDirectory } from '../cli/terminal.ts';

const { privateKey } = generateKeyPairSync('ed25519');
const pem = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ type: 'pkcs8', format: 'pem' });
const witness = new NoteSigner('w.example', privateKey, 'witness').verifier;

const read = async (config: string) => {
  const cwd = await createDirectory({ 'oncegate.yaml': config, 'good.pem': pem, 'rsa.pem': rsa.toString() });
  return { cwd, config: await readConfig({}, cwd) };
};

it('the audit configuration has a key and anchors; paths are relative to the working directory', async () => {
  const text = `audit:
  key: good.pem
  anchors:
    - directory: elsewhere
    - { witness: "https://w.example/og", key: "${witness}" }
    - { witness: "http://10.0.0.7:8090", key: "${witness}", allowPrivate: true }
`;
  const { cwd, config } = await read(text);
  expect(config.audit).toEqual({
    key: join(cwd, 'good.pem'),
    directories: [join(cwd, 'elsewhere')],
    witnesses: [
      { url: 'https://w.example/og', key: witness, allowPrivate: false },
      { url: 'http://10.0.0.7:8090', key: witness, allowPrivate: true },
    ],
  });
  expect((await read('')).config.audit).toEqual({ key: undefined, directories: [], witnesses: [] });
});

it.each<[string, RegExp]>([
  ['audit: { key: nowhere.key }', /^oncegate\.yaml:1:15: the file cannot be read: ENOENT$/],
  ['audit: { key: oncegate.yaml }', /no usable key: not a private key in PEM form; create one with openssl/],
  ['audit: { key: rsa.pem }', /no usable key: not an Ed25519 key; create one with openssl/],
  ['audit: { anchors: [{}] }', /is neither \{ directory: … \} nor \{ witness: …, key: … \}/],
  [`audit: { anchors: [{ directory: a, witness: "https://w.example" }] }`, /is neither/],
  ['audit: { anchors: [{ directory: a, key: b }] }', /:1:\d+: is for a witness/],
  ['audit: { anchors: [{ directory: a, allowPrivate: true }] }', /is for a witness/],
  [`audit: { anchors: [{ witness: "http://w.example", key: "${witness}" }] }`, /is not a URL with https:\/\//],
  [`audit: { anchors: [{ witness: "https://w.example", key: x }] }`, /is not a public key such as/],
  ['audit: { anchors: [{ witness: "https://w.example" }] }', /has no key/],
  ['audit: { anchor: [] }', /anchor/],
])('readConfig reports the fault in %s', async (config, message) => {
  const fault = await read(config).catch((error: unknown) => error);
  expect(fault).toBeInstanceOf(ConfigError);
  expect((fault as ConfigError).faults).toHaveLength(1);
  expect((fault as ConfigError).faults[0]).toMatch(message);
});
