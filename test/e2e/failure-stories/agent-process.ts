import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const running = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** An agent in its own process, which can be killed, paused and resumed. It reports each action as a line of output. */
export class AgentProcess {
  readonly lines: string[] = [];
  readonly #child: ChildProcess;
  readonly #waiters: { readonly matches: (line: string) => boolean; readonly resolve: (line: string) => void }[] = [];

  constructor(program: string, args: readonly string[]) {
    const file = fileURLToPath(new URL(program, import.meta.url));
    this.#child = spawn(process.execPath, [file, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
    running.add(this.#child);
    this.#child.once('exit', () => running.delete(this.#child));
    createInterface({ input: this.#child.stdout as NodeJS.ReadableStream }).on('line', (line) => this.#onLine(line));
  }

  #onLine(line: string): void {
    this.lines.push(line);
    const matching = this.#waiters.filter(({ matches }) => matches(line));
    for (const waiter of matching) this.#waiters.splice(this.#waiters.indexOf(waiter), 1);
    for (const { resolve } of matching) resolve(line);
  }

  /** The first matching line, past or future. If the process exits first, a line that says so. */
  waitForLine(matches: (line: string) => boolean): Promise<string> {
    const earlier = this.lines.find(matches);
    if (earlier !== undefined) return Promise.resolve(earlier);
    const later = new Promise<string>((resolve) => this.#waiters.push({ matches, resolve }));
    return Promise.race([later, this.waitForExit().then((exit) => `ended with ${exit}`)]);
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
