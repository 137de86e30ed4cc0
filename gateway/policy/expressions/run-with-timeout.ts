import { type Context, createContext, Script } from 'node:vm';

/**
 * Ends work that takes too long, though nothing in it can be asked to stop: a check that was made of somebody else's schema.
 * Everything else in the process waits meanwhile, so the time is short. Watching costs a thread, some 150 µs: only what could
 * take long is watched. Nothing of ours may be half done when it is cut off, so the work only reads and returns.
 */
const sandbox: Context = createContext({ work: undefined });
const workScript = new Script('work()');

/** A clock runs on while the machine is busy with others, which is no fault of the work's. */
const MAX_TRIES = 2;

/** What the work returns; undefined: it was not done in time. */
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
