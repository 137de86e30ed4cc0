import { type FileHandle, mkdir, open } from 'node:fs/promises';
import path from 'node:path';
import { type EffectEntry, ServiceState } from './service-state.ts';

/**
 * Stores every effect of the demo services as one JSON line, on disk before the service answers. Several gateways may
 * share the file. Each reads the new lines before it reads state or writes, and the order of the lines decides who was
 * first.
 */
export class EffectJournal {
  readonly #file: string;
  #state = new ServiceState();
  /** How many bytes, in whole lines, `#state` contains. */
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
    // Sync the directory, so that the file name survives a power cut.
    const handle = await open(directory, 'r');
    await handle.sync().finally(() => handle.close());
    return journal;
  }

  /** The current state, including the effects of other processes. */
  readState(): Promise<ServiceState> {
    return this.record(() => undefined);
  }

  /**
   * Appends the entry that `decide` returns for the current state, if any, and returns the new state. A crash in here
   * leaves the line or no line; half a line, after a power cut, counts as none.
   */
  record(decide: (state: ServiceState) => EffectEntry | undefined): Promise<ServiceState> {
    const turn = this.#queue.then(() => this.#record(decide));
    this.#queue = turn.catch(() => {});
    return turn;
  }

  async #record(decide: (state: ServiceState) => EffectEntry | undefined): Promise<ServiceState> {
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
      // The file was truncated to reset the demo.
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
