import { type FSWatcher, watch } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type LoadOptions, type LoadResult, loadPolicies } from './load-policies.ts';
import { POLICY_FILE_PATTERN } from './read-policy-files.ts';

/**
 * Notices that policies changed on disk, loads them and hands over what came of it; whether to apply it is the
 * caller's business. With the first load made by `reload()` too, no change falls between loading and watching.
 */
export interface PolicyWatcher {
  /** Loads now, whether something changed or not; one load at a time. `onChange` hears of it as well, and who asked. */
  reload(askedBy?: string): Promise<LoadResult>;
  close(): Promise<void>;
}

export interface PolicyWatchOptions extends LoadOptions {
  /** `askedBy` is absent when the change on disk was noticed. */
  readonly onChange: (loaded: LoadResult, askedBy: string | undefined) => void;
  readonly debounceMs?: number;
  readonly pollMs?: number;
}

export function watchPolicies(options: PolicyWatchOptions): PolicyWatcher {
  const { dir, env, onChange, debounceMs = 100, pollMs = 1_000 } = options;
  let seen: string | undefined;
  let closed = false;
  let queue: Promise<unknown> = Promise.resolve();
  let settling: NodeJS.Timeout | undefined;

  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const turn = queue.then(work, work);
    queue = turn.catch(() => undefined);
    return turn;
  };
  const load = async (askedBy?: string): Promise<LoadResult> => {
    // Taken before reading: what changes while we read is seen as a change the next time.
    seen = await fingerprintDirectory(dir);
    const loaded = await loadPolicies({ dir, env });
    if (!closed) onChange(loaded, askedBy);
    return loaded;
  };
  const look = (): Promise<void> =>
    inTurn(async () => {
      const found = await fingerprintDirectory(dir);
      if (closed || found === seen) return;
      // A half-written file must not take force: only what has stood still for a moment is loaded.
      await sleep(debounceMs, undefined, { ref: false });
      if ((await fingerprintDirectory(dir)) === found) await load();
      else soon();
    });
  const soon = (): void => {
    clearTimeout(settling);
    if (!closed) settling = setTimeout(() => void look().catch(() => undefined), debounceMs).unref();
  };

  void inTurn(async () => {
    seen ??= await fingerprintDirectory(dir);
  });
  const watcher = watchDirectory(dir, soon);
  // fs.watch misses changes on network mounts, in directories made later, and where inotify is used up.
  const poll = setInterval(() => void look().catch(() => undefined), pollMs).unref();

  return {
    reload: (askedBy) => inTurn(() => load(askedBy)),
    close: async () => {
      closed = true;
      clearInterval(poll);
      clearTimeout(settling);
      watcher?.close();
      await queue;
    },
  };
}

function watchDirectory(dir: string, changed: () => void): FSWatcher | undefined {
  try {
    const watcher = watch(dir, { recursive: true, persistent: false }, changed);
    watcher.on('error', () => watcher.close());
    return watcher;
  } catch {
    return undefined;
  }
}

/** Names, sizes and times of all that is read; links are followed, as Kubernetes swaps a link to change a file. */
async function fingerprintDirectory(dir: string): Promise<string> {
  const parts: string[] = [];
  const visit = async (below: string, depth: number): Promise<void> => {
    const entries = await readdir(path.join(dir, below), { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      const name = path.join(below, entry.name);
      if (entry.isDirectory() && depth < 8 && !entry.name.startsWith('.')) await visit(name, depth + 1);
      else if (POLICY_FILE_PATTERN.test(entry.name)) {
        const found = await stat(path.join(dir, name), { bigint: true }).catch(() => undefined);
        parts.push(`${name} ${found?.ino} ${found?.size} ${found?.mtimeNs} ${found?.ctimeNs}`);
      }
    }
  };
  await visit('', 0);
  return parts.sort().join('\n');
}
