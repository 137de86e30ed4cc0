import { execFile } from 'node:child_process';
import { mkdir, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);
export const FRAMEWORKS = resolve('test/frameworks');

/** Some frameworks need a newer Node than the gateway; it comes with them. */
export const NODE_22 = join(FRAMEWORKS, 'node_modules/node/bin/node');

/** A directory can be made only once, so making it is a lock. One that is older was left by a process that died. */
const LOCK = join(FRAMEWORKS, '.installing');
const STALE_MS = 600_000;

/** Installs the frameworks unless what is there is what the lock file says, and builds the client as it is published. */
export async function prepareFrameworks(): Promise<void> {
  await locked(async () => {
    if (!(await installed())) await run('npm', ['ci', '--prefix', FRAMEWORKS, '--loglevel=error'], { cwd: FRAMEWORKS });
    await run(process.execPath, [resolve('node_modules/typescript/bin/tsc'), '-p', resolve('clients/tsconfig.json')]);
  });
}

/** npm writes its own copy of the lock file last. */
async function installed(): Promise<boolean> {
  const wanted = await stat(join(FRAMEWORKS, 'package-lock.json'));
  const found = await stat(join(FRAMEWORKS, 'node_modules/.package-lock.json')).catch(() => undefined);
  return found !== undefined && found.mtimeMs >= wanted.mtimeMs;
}

async function locked(work: () => Promise<void>): Promise<void> {
  for (;;) {
    const mine = await mkdir(LOCK).then(
      () => true,
      () => false,
    );
    if (mine) break;
    const since = await stat(LOCK).catch(() => undefined);
    if (since !== undefined && Date.now() - since.mtimeMs > STALE_MS) await rm(LOCK, { recursive: true, force: true });
    await sleep(200);
  }
  try {
    await work();
  } finally {
    await rm(LOCK, { recursive: true, force: true });
  }
}
