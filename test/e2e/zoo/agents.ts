import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const running = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** An agent that is a process of its own: it can be killed, frozen and thawed. It tells what it does line by line. */
export class AgentProcess {
  readonly lines: string[] = [];
  readonly #child: ChildProcess;
  readonly #waiting: { readonly told: (line: string) => boolean; readonly resolve: (line: string) => void }[] = [];

  constructor(program: string, args: readonly string[]) {
    const file = fileURLToPath(new URL(program, import.meta.url));
    this.#child = spawn(process.execPath, [file, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
    running.add(this.#child);
    this.#child.once('exit', () => running.delete(this.#child));
    createInterface({ input: this.#child.stdout as NodeJS.ReadableStream }).on('line', (line) => this.#onLine(line));
  }

  #onLine(line: string): void {
    this.lines.push(line);
    const heard = this.#waiting.filter(({ told }) => told(line));
    for (const each of heard) this.#waiting.splice(this.#waiting.indexOf(each), 1);
    for (const { resolve } of heard) resolve(line);
  }

  /** The first line, past or to come, that is so; or the end of the process, which is told as a line of its own. */
  waitForLine(told: (line: string) => boolean): Promise<string> {
    const said = this.lines.find(told);
    if (said !== undefined) return Promise.resolve(said);
    const heard = new Promise<string>((resolve) => this.#waiting.push({ told, resolve }));
    return Promise.race([heard, this.waitForExit().then((how) => `ended with ${how}`)]);
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async waitForExit(): Promise<string> {
    const { exitCode, signalCode } = this.#child;
    if (exitCode === null && signalCode === null) await once(this.#child, 'close');
    return String(this.#child.exitCode ?? this.#child.signalCode);
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.waitForExit();
  }
}
