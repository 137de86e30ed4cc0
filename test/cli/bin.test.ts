import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { expect, it } from 'vitest';

// `npm test` builds first; a bare vitest on a fresh clone has nothing to run here.
it.skipIf(!existsSync('dist/gateway/cli/main.js'))('a reader that goes away is no error', async () => {
  const child = spawn(process.execPath, ['bin/oncegate.js', 'help', '--json'], { stdio: ['ignore', 'pipe', 'pipe'] });
  child.stdout.destroy();
  let err = '';
  child.stderr.on('data', (chunk) => {
    err += String(chunk);
  });
  const [code] = (await once(child, 'close')) as [number | null];
  expect([code, err]).toEqual([0, '']);
});
