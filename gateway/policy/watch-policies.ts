import { type FSWatcher, watch } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type LoadOptions, type LoadResult, loadPolicies } from './load-policies.ts';
import { POLICY_FILE_PATTERN } from './read-policy-files.ts';

/**
 * Loads the policies when they change on disk and passes the result on; the caller decides whether to apply it. The first load
 * must go through `reload()` too, so that no change between loading and watching is missed.
 */
export interface PolicyWatcher {
  /** Loads now, even if nothing changed. Loads run one at a time. `onChange` receives the result and `requestedBy` as well. */
  reload(requestedBy?: string): Promise<LoadResult>;
  close(): Promise<void>;
}

export interface PolicyWatchOptions extends LoadOptions {
  /** `requestedBy` is undefined when a change on disk caused the load. */
  readonly onChange: (loaded: LoadResult, requestedBy: string | undefined) => void;
  readonly debounceMs?: number;
  readonly pollMs?: number;
}

export function watchPolicies(options: PolicyWatchOptions): PolicyWatcher {
  const { dir, env, onChange, debounceMs = 100, pollMs = 1_000 } = options;
  let loadedFingerprint: string | undefined;
  let isClosed = false;
  let queue: Promise<unknown> = Promise.resolve();
  let checkTimer: NodeJS.Timeout | undefined;

  const enqueue = <T>(work: () => Promise<T>): Promise<T> => {
    const turn = queue.then(work, work);
    queue = turn.catch(() => undefined);
    return turn;
  };
  const load = async (requestedBy?: string): Promise<LoadResult> => {
    // Taken before the files are read, so that a change during the load causes another load.
    loadedFingerprint = await fingerprintDirectory(dir);
    const loaded = await loadPolicies({ dir, env });
    if (!isClosed) onChange(loaded, requestedBy);
    return loaded;
  };
  const loadIfChanged = (): Promise<void> =>
    enqueue(async () => {
      const fingerprint = await fingerprintDirectory(dir);
      if (isClosed || fingerprint === loadedFingerprint) return;
      // Loads only files that did not change for a moment, because a half-written file must not take effect.
      await sleep(debounceMs, undefined, { ref: false });
      if ((await fingerprintDirectory(dir)) === fingerprint) await load();
      else scheduleCheck();
    });
  const scheduleCheck = (): void => {
    clearTimeout(checkTimer);
    if (!isClosed) checkTimer = setTimeout(() => void loadIfChanged().catch(() => undefined), debounceMs).unref();
  };

  void enqueue(async () => {
    loadedFingerprint ??= await fingerprintDirectory(dir);
  });
  const watcher = watchDirectory(dir, scheduleCheck);
  // fs.watch misses changes on network mounts, in directories created later, and when inotify watches run out.
  const poll = setInterval(() => void loadIfChanged().catch(() => undefined), pollMs).unref();

  return {
    reload: (requestedBy) => enqueue(() => load(requestedBy)),
    close: async () => {
      isClosed = true;
      clearInterval(poll);
      clearTimeout(checkTimer);
      watcher?.close();
      await queue;
    },
  };
}

function watchDirectory(dir: string, onChange: () => void): FSWatcher | undefined {
  try {
    const watcher = watch(dir, { recursive: true, persistent: false }, onChange);
    watcher.on('error', () => watcher.close());
    return watcher;
  } catch {
    return undefined;
  }
}

/** Names, sizes and times of all policy files. Follows links, because Kubernetes swaps a link to change a file. */
async function fingerprintDirectory(dir: string): Promise<string> {
  const parts: string[] = [];
  const visit = async (below: string, depth: number): Promise<void> => {
    const entries = await readdir(path.join(dir, below), { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      const name = path.join(below, entry.name);
      if (entry.isDirectory() && depth < 8 && !entry.name.startsWith('.')) await visit(name, depth + 1);
      else if (POLICY_FILE_PATTERN.test(entry.name)) {
        const stats = await stat(path.join(dir, name), { bigint: true }).catch(() => undefined);
        parts.push(`${name} ${stats?.ino} ${stats?.size} ${stats?.mtimeNs} ${stats?.ctimeNs}`);
      }
    }
  };
  await visit('', 0);
  return parts.sort().join('\n');
}
