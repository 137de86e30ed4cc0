import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { expect, it } from 'vitest';

// Skipped when vitest runs on a clone that was never built; `npm test` builds first.
it.skipIf(!existsSync('dist/gateway/cli/main.js'))('a reader that closes the pipe is no error', async () => {
  const child = spawn(process.execPath, ['bin/oncegate.js', 'help', '--json'], { stdio: ['ignore', 'pipe', 'pipe'] });
  child.stdout.destroy();
  let err = '';
  child.stderr.on('data', (chunk) => {
    err += String(chunk);
  });
  const [code] = (await once(child, 'close')) as [number | null];
  expect([code, err]).toEqual([0, '']);
});
