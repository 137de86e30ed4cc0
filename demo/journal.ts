import { type FileHandle, mkdir, open } from 'node:fs/promises';
import path from 'node:path';
import { type Entry, World } from './world.ts';

/**
 * What the demo services remember: a file with one JSON line an effect, on disk before anybody is told of it. Several
 * gateways may share the file. Each reads on from where it stopped before it looks or writes, and the order of the lines
 * decides who was first.
 */
export class Journal {
  readonly #file: string;
  #world = new World();
  /** Bytes of whole lines that `#world` knows. */
  #known = 0;
  #torn = false;
  #queue: Promise<unknown> = Promise.resolve();

  private constructor(file: string) {
    this.#file = file;
  }

  static async open(file: string): Promise<Journal> {
    const directory = path.dirname(file);
    await mkdir(directory, { recursive: true });
    const journal = new Journal(file);
    await journal.now();
    // The file's own name must survive a power cut too.
    const handle = await open(directory, 'r');
    await handle.sync().finally(() => handle.close());
    return journal;
  }

  /** The world as it is, with what other processes did to it. */
  now(): Promise<World> {
    return this.record(() => undefined);
  }

  /**
   * Writes what `decide` makes of the world as it is (nothing, if undefined) and returns the world after it. A crash in
   * here leaves the line or no line; half a line, after a power cut, counts as none.
   */
  record(decide: (world: World) => Entry | undefined): Promise<World> {
    const turn = this.#queue.then(() => this.#record(decide));
    this.#queue = turn.catch(() => {});
    return turn;
  }

  async #record(decide: (world: World) => Entry | undefined): Promise<World> {
    const handle = await open(this.#file, 'a+', 0o600);
    try {
      await this.#catchUp(handle);
      const entry = decide(this.#world);
      if (entry === undefined) return this.#world;
      await handle.appendFile(`${this.#torn ? '\n' : ''}${JSON.stringify(entry)}\n`);
      await handle.sync();
      await this.#catchUp(handle);
      return this.#world;
    } finally {
      await handle.close();
    }
  }

  async #catchUp(handle: FileHandle): Promise<void> {
    const { size } = await handle.stat();
    if (size < this.#known) {
      // Somebody emptied the file to start afresh.
      this.#world = new World();
      this.#known = 0;
    }
    const fresh = Buffer.alloc(size - this.#known);
    const { bytesRead } = await handle.read(fresh, 0, fresh.length, this.#known);
    const whole = fresh.subarray(0, bytesRead).lastIndexOf('\n') + 1;
    for (const line of fresh.toString('utf8', 0, whole).split('\n')) {
      const entry = parse(line);
      if (entry !== undefined) this.#world.apply(entry);
    }
    this.#known += whole;
    this.#torn = whole < bytesRead;
  }
}

function parse(line: string): Entry | undefined {
  try {
    return JSON.parse(line) as Entry;
  } catch {
    return undefined;
  }
}
