import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { link, mkdir, readFile, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

export interface DemoKeys {
  readonly agentKey: string;
  readonly adminKey: string;
  /** The credential of the gateway for the demo services. */
  readonly token: string;
}

/**
 * The key that encrypts the payloads of redacting tools, and hashes upstream credentials. If it is lost, only the calls
 * with encrypted payloads can no longer be re-sent.
 */
export async function loadSealingKey(dataDir: string): Promise<Buffer> {
  const text = await readOrCreate(dataDir, 'encryption.key', () => randomBytes(32).toString('hex'));
  if (!/^[0-9a-f]{64}\s*$/.test(text)) throw new Error(`${join(dataDir, 'encryption.key')} is not 64 hex digits`);
  return Buffer.from(text.trim(), 'hex');
}

/** The key that signs the audit log. If it is lost, the log can still be verified, but not continued. */
export async function loadAuditKey(dataDir: string, file: string | undefined): Promise<string> {
  return file === undefined ? readOrCreate(dataDir, 'audit.key', generateSigningKey) : readFile(file, 'utf8');
}

/** The key with which a witness cosigns checkpoints. */
export function loadWitnessKey(directory: string): Promise<string> {
  return readOrCreate(directory, 'witness.key', generateSigningKey);
}

function generateSigningKey(): string {
  return generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
}

/** The keys of the demo agent and its administrator, created at the first start. */
export async function loadDemoKeys(dataDir: string): Promise<DemoKeys> {
  const generate = (): DemoKeys => ({
    agentKey: `og_demo_${randomBytes(18).toString('base64url')}`,
    adminKey: `og_admin_${randomBytes(18).toString('base64url')}`,
    token: randomBytes(18).toString('base64url'),
  });
  return JSON.parse(
    await readOrCreate(dataDir, 'demo-keys.json', () => JSON.stringify(generate(), null, 2)),
  ) as DemoKeys;
}

export async function readDemoKeys(dataDir: string): Promise<DemoKeys | undefined> {
  try {
    return JSON.parse(await readFile(join(dataDir, 'demo-keys.json'), 'utf8')) as DemoKeys;
  } catch {
    return undefined;
  }
}

/** Creates the file atomically. If replicas that share the directory start together, all use the first file. */
async function readOrCreate(dataDir: string, name: string, generate: () => string): Promise<string> {
  const path = join(dataDir, name);
  const existing = await readFile(path, 'utf8').catch(() => undefined);
  if (existing !== undefined) return existing;
  // As root, PostgreSQL runs as another user, who must be able to enter the directory.
  await mkdir(dataDir, { recursive: true, mode: process.getuid?.() === 0 ? 0o711 : 0o700 });
  const draft = `${path}.${process.pid}.${randomBytes(4).toString('hex')}`;
  await writeFile(draft, generate(), { mode: 0o600, flag: 'wx', flush: true });
  await link(draft, path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  await unlink(draft);
  return readFile(path, 'utf8');
}
