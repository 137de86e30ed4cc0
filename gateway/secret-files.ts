import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { link, mkdir, readFile, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

export interface DemoKeys {
  readonly agentKey: string;
  readonly adminKey: string;
  /** What the demo services ask of the gateway. */
  readonly token: string;
}

/**
 * Encrypts what a redacting tool's re-send needs, and tells places apart whose credentials are not written down. Lost, those
 * calls can no longer be re-sent; nothing else is.
 */
export async function sealingKey(dataDir: string): Promise<Buffer> {
  const text = await readOrCreate(dataDir, 'encryption.key', () => randomBytes(32).toString('hex'));
  if (!/^[0-9a-f]{64}\s*$/.test(text)) throw new Error(`${join(dataDir, 'encryption.key')} is not 64 hex digits`);
  return Buffer.from(text.trim(), 'hex');
}

/** Signs the log. Lost, what it signed can still be verified, but nobody can go on in its name. */
export async function auditKey(dataDir: string, given: string | undefined): Promise<string> {
  return given === undefined ? readOrCreate(dataDir, 'audit.key', newSigningKey) : readFile(given, 'utf8');
}

/** Cosigns the logs of others. */
export function witnessKey(directory: string): Promise<string> {
  return readOrCreate(directory, 'witness.key', newSigningKey);
}

function newSigningKey(): string {
  return generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
}

/** Keys of the demo agent and its administrator: made on the first start, the same ever after. */
export async function demoKeys(dataDir: string): Promise<DemoKeys> {
  const fresh = (): DemoKeys => ({
    agentKey: `og_demo_${randomBytes(18).toString('base64url')}`,
    adminKey: `og_admin_${randomBytes(18).toString('base64url')}`,
    token: randomBytes(18).toString('base64url'),
  });
  return JSON.parse(await readOrCreate(dataDir, 'demo-keys.json', () => JSON.stringify(fresh(), null, 2))) as DemoKeys;
}

export async function readDemoKeys(dataDir: string): Promise<DemoKeys | undefined> {
  try {
    return JSON.parse(await readFile(join(dataDir, 'demo-keys.json'), 'utf8')) as DemoKeys;
  } catch {
    return undefined;
  }
}

/** Whole or not at all, and one winner when replicas that share the directory start together. */
async function readOrCreate(dataDir: string, name: string, make: () => string): Promise<string> {
  const path = join(dataDir, name);
  const existing = await readFile(path, 'utf8').catch(() => undefined);
  if (existing !== undefined) return existing;
  // As root PostgreSQL runs as somebody else, who must be able to pass through.
  await mkdir(dataDir, { recursive: true, mode: process.getuid?.() === 0 ? 0o711 : 0o700 });
  const draft = `${path}.${process.pid}.${randomBytes(4).toString('hex')}`;
  await writeFile(draft, make(), { mode: 0o600, flag: 'wx', flush: true });
  await link(draft, path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  await unlink(draft);
  return readFile(path, 'utf8');
}
