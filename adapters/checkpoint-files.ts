import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

const CHECKPOINT_NAME = /^checkpoint-(\d{15})$/;

/**
 * A directory outside the database that keeps the newest checkpoint. A file is named by the size it vouches for, so replicas
 * that share the directory can never put an older one in the place of a newer: the largest name counts, and whoever writes
 * one removes the smaller. A crash leaves one too many, never one too few.
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
        // Another replica wrote a newer one, and removed this, since we looked.
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      }
    }
  }

  /** Durable when this resolves: the file, then its name, then its place in the directory. */
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

  /** What is kept no longer counts, but is not lost: it stays under another name. */
  async archive(): Promise<void> {
    const names = await this.#listNames();
    const until = new Date().toISOString().replaceAll(/[-:]|\.\d+/g, '');
    for (const name of names)
      await rename(join(this.directory, name), join(this.directory, `${name}.until-${until}`)).catch(ignoreMissing);
    if (names.length > 0) await this.#syncDirectory();
  }

  /** The largest size first. */
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
