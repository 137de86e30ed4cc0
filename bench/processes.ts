import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export interface ServerProcess {
  readonly url: string;
  readonly pid: number;
  /** Resolves when the process has ended, for any reason. */
  waitForExit(): Promise<unknown>;
  kill(signal?: NodeJS.Signals): Promise<void>;
}

const children = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});

/** Kills the child at the latest when this process ends. */
export function killOnExit(child: ChildProcess): ChildProcess {
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
}

export function toServerProcess(child: ChildProcess, url: string): ServerProcess {
  const hasEnded = () => child.exitCode !== null || child.signalCode !== null;
  const waitForExit = async () => hasEnded() || once(child, 'exit');
  const kill = async (signal?: NodeJS.Signals) => {
    child.kill(signal ?? 'SIGTERM');
    await waitForExit();
  };
  return { url, pid: child.pid ?? -1, waitForExit, kill };
}

/** Starts a script of this directory as a process. Resolves when the script prints its port. */
export async function startServerProcess(
  script: string,
  env: Readonly<Record<string, string>> = {},
): Promise<ServerProcess> {
  const child = killOnExit(
    spawn(process.execPath, [fileURLToPath(new URL(script, import.meta.url))], {
      env: { ...process.env, NODE_ENV: 'production', ...env },
      stdio: ['ignore', 'pipe', 'inherit'],
    }),
  );
  if (child.stdout === null) throw new Error('The child process has no standard output.');
  for await (const line of createInterface({ input: child.stdout })) {
    const [, port] = /^listening (\d+)$/.exec(line) ?? [];
    if (port !== undefined) return toServerProcess(child, `http://127.0.0.1:${port}`);
  }
  throw new Error(`${script} did not start.`);
}

/** The resident memory of these processes together, in MiB; undefined without /proc. */
export async function readResidentMiB(pids: readonly number[]): Promise<number | undefined> {
  let kib = 0;
  for (const pid of pids) {
    const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
    const [, resident] = /VmRSS:\s+(\d+)/.exec(status) ?? [];
    if (resident === undefined) return undefined;
    kib += Number(resident);
  }
  return Math.round(kib / 1024);
}
