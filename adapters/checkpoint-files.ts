import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

const CHECKPOINT_NAME = /^checkpoint-(\d{15})$/;

/**
 * An anchor: a directory outside the database that keeps the newest checkpoint. The size of the log is part of the file name,
 * so replicas that share the directory can never replace a newer checkpoint by an older one. The largest name counts, and a
 * writer removes the smaller ones. A crash can leave one file too many, never one too few.
 */
export class CheckpointFiles {
  readonly directory: string;

  constructor(directory: string) {
    this.directory = directory;
  }

  async readNewest(): Promise<string | undefined> {
    for (;;) {
      const [newest] = await this.#listNames();
      if (newest === undefined) return undefined;
      try {
        return await readFile(join(this.directory, newest), 'utf8');
      } catch (error) {
        // Another replica wrote a newer checkpoint and removed this one meanwhile.
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      }
    }
  }

  /** Writes a checkpoint durably: syncs the file, renames it, then syncs the directory. */
  async write(note: string, size: number): Promise<void> {
    await mkdir(this.directory, { recursive: true, mode: 0o700 });
    const name = `checkpoint-${String(size).padStart(15, '0')}`;
    const draft = join(this.directory, `.${name}.${process.pid}.${randomBytes(4).toString('hex')}`);
    await writeFile(draft, note, { mode: 0o644, flag: 'wx', flush: true });
    await rename(draft, join(this.directory, name));
    await this.#syncDirectory();
    for (const older of await this.#listNames())
      if (older < name) await unlink(join(this.directory, older)).catch(ignoreMissing);
  }

  /** Renames the checkpoints, so that they no longer count but remain available. */
  async archive(): Promise<void> {
    const names = await this.#listNames();
    const time = new Date().toISOString().replaceAll(/[-:]|\.\d+/g, '');
    for (const name of names)
      await rename(join(this.directory, name), join(this.directory, `${name}.until-${time}`)).catch(ignoreMissing);
    if (names.length > 0) await this.#syncDirectory();
  }

  /** Lists the checkpoints, the largest size first. */
  async #listNames(): Promise<string[]> {
    try {
      return (await readdir(this.directory))
        .filter((name) => CHECKPOINT_NAME.test(name))
        .sort((a, b) => (a < b ? 1 : -1));
    } catch (error) {
      ignoreMissing(error as NodeJS.ErrnoException);
      return [];
    }
  }

  async #syncDirectory(): Promise<void> {
    const directory = await open(this.directory, 'r');
    await directory.sync().finally(() => directory.close());
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
