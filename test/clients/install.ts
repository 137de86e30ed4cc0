import { execFile } from 'node:child_process';
import { mkdir, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const execFileAsync = promisify(execFile);
export const FRAMEWORKS_DIR = resolve('test/frameworks');

/** Some frameworks need a newer Node than the gateway; npm installs it with them. */
export const NODE_22 = join(FRAMEWORKS_DIR, 'node_modules/node/bin/node');

/** Creating this directory takes the lock. An older directory was left by a process that died. */
const LOCK_DIR = join(FRAMEWORKS_DIR, '.installing');
const STALE_LOCK_MS = 600_000;

/** Installs the frameworks if the lock file is newer than the installation, and builds the client as it is published. */
export async function prepareFrameworks(): Promise<void> {
  await withInstallLock(async () => {
    if (!(await isInstalled()))
      await execFileAsync('npm', ['ci', '--prefix', FRAMEWORKS_DIR, '--loglevel=error'], { cwd: FRAMEWORKS_DIR });
    await execFileAsync(process.execPath, [
      resolve('node_modules/typescript/bin/tsc'),
      '-p',
      resolve('clients/tsconfig.json'),
    ]);
  });
}

/** npm writes `node_modules/.package-lock.json` last, so an older one means an incomplete installation. */
async function isInstalled(): Promise<boolean> {
  const wanted = await stat(join(FRAMEWORKS_DIR, 'package-lock.json'));
  const found = await stat(join(FRAMEWORKS_DIR, 'node_modules/.package-lock.json')).catch(() => undefined);
  return found !== undefined && found.mtimeMs >= wanted.mtimeMs;
}

async function withInstallLock(work: () => Promise<void>): Promise<void> {
  for (;;) {
    const isLocked = await mkdir(LOCK_DIR).then(
      () => true,
      () => false,
    );
    if (isLocked) break;
    const since = await stat(LOCK_DIR).catch(() => undefined);
    if (since !== undefined && Date.now() - since.mtimeMs > STALE_LOCK_MS)
      await rm(LOCK_DIR, { recursive: true, force: true });
    await sleep(200);
  }
  try {
    await work();
  } finally {
    await rm(LOCK_DIR, { recursive: true, force: true });
  }
}
