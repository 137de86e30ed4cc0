import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { findFreePort, type Gateway } from '../support/gateway.ts';
import { type Block, formatLocation } from './blocks.ts';

/** The keys that a reader has set before pasting a block. */
export interface ReaderKeys {
  readonly agentKey: string;
  readonly adminKey: string;
}

export interface BlockResult {
  readonly block: Block;
  readonly stdout: string;
  readonly stderr: string;
  /** The HTTP statuses that the block's curl commands got. */
  readonly statuses: readonly number[];
}

const BLOCK_MARK = '@@block';
const STATUS_MARK = '@@status';

/**
 * Runs the shell blocks of one page in one shell, as a reader pastes them: variables and background processes last from
 * block to block. The first command that fails fails the page, and the error names its block.
 */
export async function runShellBlocks(
  gateway: Gateway,
  keys: ReaderKeys,
  blocks: readonly Block[],
): Promise<BlockResult[]> {
  const { DATABASE_URL: _, ONCEGATE_URL: __, ...inherited } = process.env;
  const path = `${await writeShims(gateway)}:${process.env['PATH']}`;
  const script = join(gateway.home, 'page.sh');
  await writeFile(script, writeScript(blocks, gateway, await findFreePort()));
  const shell = spawn('bash', [script], {
    cwd: gateway.home,
    env: { ...inherited, PATH: path, KEY: keys.agentKey, ONCEGATE_KEY: keys.adminKey },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  const output = { stdout: '', stderr: '' };
  for (const stream of ['stdout', 'stderr'] as const)
    shell[stream].on('data', (chunk: Buffer) => {
      output[stream] += chunk.toString();
    });
  const [code] = (await once(shell, 'exit')) as [number | null];
  endProcessGroup(shell.pid);
  const results = splitByBlock(blocks, output);
  const last = results.at(-1);
  if (code !== 0 || results.length < blocks.length)
    throw new Error(
      `${last === undefined ? script : formatLocation(last.block)}: The block exited with ${code}.\n${last?.stdout}${last?.stderr}`,
    );
  return results;
}

/** Replaces the ports that the pages name: the default port of the gateway and the fixed port of an example service. */
function writeScript(blocks: readonly Block[], gateway: Gateway, servicePort: number): string {
  const texts = blocks.map(({ text }, index) => {
    const marks = `printf '\\n${BLOCK_MARK} ${index}\\n'; printf '\\n${BLOCK_MARK} ${index}\\n' >&2`;
    return `${marks}\n${text}`;
  });
  const setup = [
    'set -euo pipefail',
    `curl() { command curl --write-out '%{stderr}${STATUS_MARK} %{http_code}\\n' "$@"; }`,
  ];
  return [...setup, ...texts]
    .join('\n')
    .replaceAll('http://127.0.0.1:8080', gateway.url)
    .replaceAll(/\b4100\b/g, String(servicePort));
}

function splitByBlock(blocks: readonly Block[], output: { stdout: string; stderr: string }): BlockResult[] {
  const split = (text: string) =>
    new Map(
      text
        .split(`\n${BLOCK_MARK} `)
        .slice(1)
        .map((part) => [Number.parseInt(part, 10), part.slice(part.indexOf('\n') + 1)]),
    );
  const [stdout, stderr] = [split(output.stdout), split(output.stderr)];
  return blocks.flatMap((block, index) => {
    const [out, err] = [stdout.get(index), stderr.get(index)];
    if (out === undefined || err === undefined) return [];
    const statuses = [...err.matchAll(new RegExp(`${STATUS_MARK} (\\d+)`, 'g'))].map(([, status]) => Number(status));
    return [{ block, stdout: out, stderr: err, statuses }];
  });
}

/** Writes an `npx` whose `oncegate` talks to the gateway of the test instead of the default port. */
async function writeShims(gateway: Gateway): Promise<string> {
  const directory = join(gateway.home, 'shims');
  const npx = join(directory, 'npx');
  await mkdir(directory, { recursive: true });
  await writeFile(
    npx,
    `#!/bin/sh
[ "$1" = oncegate ] || { echo "npx $1 is not a command of these pages" >&2; exit 64; }
shift
export ONCEGATE_URL='${gateway.url}' ONCEGATE_DATA_DIR='${join(gateway.home, 'data')}'
exec '${process.execPath}' '${resolve('bin/oncegate.js')}' "$@"
`,
  );
  await chmod(npx, 0o755);
  return directory;
}

/** Kills the background services of a page, which keep running if a block fails. */
function endProcessGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // No process of the page is running.
  }
}
