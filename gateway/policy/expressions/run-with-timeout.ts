import { type Context, createContext, Script } from 'node:vm';

/**
 * Runs synchronous work that cannot be asked to stop, such as a check by an untrusted schema, under a timeout. All other requests
 * wait meanwhile, so the timeout is short. A timeout costs a thread, some 150 µs, so only work that may take long gets one. The
 * work is cut off at any point, so it must only read and return.
 */
const sandbox: Context = createContext({ work: undefined });
const workScript = new Script('work()');

/** One retry when the work got little processor time: the clock runs on while other processes use the machine. */
const MAX_TRIES = 2;

/** The result of the work, or undefined when it timed out. */
export function runWithTimeout<T>(ms: number, work: () => T): T | undefined {
  sandbox['work'] = work;
  try {
    for (let tries = 1; ; tries++) {
      const before = process.cpuUsage();
      try {
        return workScript.runInContext(sandbox, { timeout: ms }) as T;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ERR_SCRIPT_EXECUTION_TIMEOUT') throw error;
        const { user, system } = process.cpuUsage(before);
        if (tries === MAX_TRIES || (user + system) / 1_000 > ms / 2) return undefined;
      }
    }
  } finally {
    sandbox['work'] = undefined;
  }
}
