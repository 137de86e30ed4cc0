import { type FileHandle, mkdir, open } from 'node:fs/promises';
import path from 'node:path';
import { type EffectEntry, ServiceState } from './world.ts';

/**
 * What the demo services remember: a file with one JSON line an effect, on disk before anybody is told of it. Several
 * gateways may share the file. Each reads on from where it stopped before it looks or writes, and the order of the lines
 * decides who was first.
 */
export class EffectJournal {
  readonly #file: string;
  #state = new ServiceState();
  /** Bytes of whole lines that `#world` knows. */
  #knownBytes = 0;
  #isTorn = false;
  #queue: Promise<unknown> = Promise.resolve();

  private constructor(file: string) {
    this.#file = file;
  }

  static async open(file: string): Promise<EffectJournal> {
    const directory = path.dirname(file);
    await mkdir(directory, { recursive: true });
    const journal = new EffectJournal(file);
    await journal.readState();
    // The file's own name must survive a power cut too.
    const handle = await open(directory, 'r');
    await handle.sync().finally(() => handle.close());
    return journal;
  }

  /** The world as it is, with what other processes did to it. */
  readState(): Promise<ServiceState> {
    return this.record(() => undefined);
  }

  /**
   * Writes what `decide` makes of the world as it is (nothing, if undefined) and returns the world after it. A crash in
   * here leaves the line or no line; half a line, after a power cut, counts as none.
   */
  record(decide: (world: ServiceState) => EffectEntry | undefined): Promise<ServiceState> {
    const turn = this.#queue.then(() => this.#record(decide));
    this.#queue = turn.catch(() => {});
    return turn;
  }

  async #record(decide: (world: ServiceState) => EffectEntry | undefined): Promise<ServiceState> {
    const handle = await open(this.#file, 'a+', 0o600);
    try {
      await this.#catchUp(handle);
      const entry = decide(this.#state);
      if (entry === undefined) return this.#state;
      await handle.appendFile(`${this.#isTorn ? '\n' : ''}${JSON.stringify(entry)}\n`);
      await handle.sync();
      await this.#catchUp(handle);
      return this.#state;
    } finally {
      await handle.close();
    }
  }

  async #catchUp(handle: FileHandle): Promise<void> {
    const { size } = await handle.stat();
    if (size < this.#knownBytes) {
      // Somebody emptied the file to start afresh.
      this.#state = new ServiceState();
      this.#knownBytes = 0;
    }
    const fresh = Buffer.alloc(size - this.#knownBytes);
    const { bytesRead } = await handle.read(fresh, 0, fresh.length, this.#knownBytes);
    const whole = fresh.subarray(0, bytesRead).lastIndexOf('\n') + 1;
    for (const line of fresh.toString('utf8', 0, whole).split('\n')) {
      const entry = parseEntry(line);
      if (entry !== undefined) this.#state.apply(entry);
    }
    this.#knownBytes += whole;
    this.#isTorn = whole < bytesRead;
  }
}

function parseEntry(line: string): EffectEntry | undefined {
  try {
    return JSON.parse(line) as EffectEntry;
  } catch {
    return undefined;
  }
}
