import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';
import { isJsonObject, type JsonObject } from '../../gateway/domain/json.ts';
import {
  type ExchangeResult,
  MAX_MESSAGE_BYTES,
  type McpTransport,
  type OutgoingMessage,
  parseMessage,
} from './mcp-transport.ts';

/** A server that dies at once is not started again and again: the first pause after a death, and the longest. */
const RESTART_BACKOFF = { firstMs: 100, mostMs: 10_000 };
const STABLE_AFTER_MS = 30_000;
const TERMINATE_AFTER_MS = 2_000;

/** What may wait to be read by a process beside the message that exceeds it, and how long it may take to read that. */
const MAX_UNREAD_BYTES = 4 * 1024 * 1024;
const MAX_UNREAD_MS = 10_000;

const ACCEPTED: ExchangeResult = { as: 'status', status: 202, text: '', headers: {} };

interface PendingRequest {
  readonly outgoing: OutgoingMessage;
  readonly finish: (ended: ExchangeResult) => void;
  /** Bytes that its server said about it before the answer. */
  told: number;
}

/**
 * MCP over the standard streams of a child process: one message a line. The process is started when it is first needed and
 * again after it died; what was on its way to it then is lost, which means unknown.
 */
export class McpStdioTransport implements McpTransport {
  readonly hasHeaders = false;
  readonly #command: readonly string[];
  readonly #env: Readonly<Record<string, string>>;
  readonly #pending = new Map<string, PendingRequest>();
  #child: ChildProcessWithoutNullStreams | undefined;
  #startedAt = 0;
  #backoffMs = 0;
  #mayStartAt = 0;
  #fullSince: number | undefined;
  /** Those who wait until it has read what was written. */
  readonly #drainWaiters = new Set<() => void>();
  #notifyUnsolicited: (message: JsonObject) => void = () => {};
  #notifyRestart: () => void = () => {};
  #closed = false;

  constructor(command: readonly string[], env: Readonly<Record<string, string>>) {
    this.#command = command;
    this.#env = env;
  }

  onUnasked(heard: (message: JsonObject) => void): void {
    this.#notifyUnsolicited = heard;
  }

  onRestart(told: () => void): void {
    this.#notifyRestart = told;
  }

  async exchange(outgoing: OutgoingMessage): Promise<ExchangeResult> {
    const began = performance.now();
    // What is sent with hardly any time left for its answer would only be doubted.
    const patience = () => began + outgoing.timeoutMs / 2 - performance.now();
    // Others who waited too may have written by the time this one goes on: from its last look to its own writing it waits for nothing.
    while (this.#isFull() && patience() > 0) await this.#waitForDrain(Math.min(patience(), MAX_UNREAD_MS));
    if (this.#isFull()) return { as: 'not_sent', detail: `${this.#command[0]} does not read` };
    const child = this.#ensureRunning();
    if (typeof child === 'string') return { as: 'not_sent', detail: child };
    if (!outgoing.maySend()) return { as: 'not_sent', detail: 'this process lost its right to send', abandoned: true };
    return this.#write(child, outgoing, began + outgoing.timeoutMs);
  }

  #write(child: ChildProcessWithoutNullStreams, outgoing: OutgoingMessage, until: number): Promise<ExchangeResult> {
    return new Promise((resolve) => {
      const { id } = outgoing.message;
      const line = `${JSON.stringify(outgoing.message)}\n`;
      // An answer is given once it has left: who asks and does not read has so many answers waiting, and no more.
      if (!('method' in outgoing.message)) return void child.stdin.write(line, () => resolve(ACCEPTED));
      child.stdin.write(line);
      if (id === undefined) return resolve(ACCEPTED);
      const key = String(id);
      const finish = (ended: ExchangeResult) => {
        clearTimeout(timer);
        this.#pending.delete(key);
        resolve(ended);
      };
      const detail = `no answer within ${outgoing.timeoutMs} ms`;
      const timer = setTimeout(() => finish({ as: 'lost', detail }), until - performance.now());
      this.#pending.set(key, { outgoing, finish, told: 0 });
    });
  }

  /** Whatever a child process says is heard already. */
  async listen({ timeoutMs }: Omit<OutgoingMessage, 'message'>): Promise<void> {
    await sleep(timeoutMs, undefined, { ref: false });
  }

  async close(): Promise<void> {
    this.#closed = true;
    const child = this.#child;
    if (child === undefined) return;
    const gone = once(child, 'exit');
    child.stdin.end();
    const terminate = setTimeout(() => child.kill('SIGTERM'), TERMINATE_AFTER_MS);
    const kill = setTimeout(() => child.kill('SIGKILL'), 2 * TERMINATE_AFTER_MS);
    await gone;
    clearTimeout(terminate);
    clearTimeout(kill);
  }

  /** Waits until the process has read everything, or ended. Whoever waits longest goes on first. */
  #waitForDrain(mostMs: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.#drainWaiters.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, mostMs);
      this.#drainWaiters.add(wake);
    });
  }

  #wakeDrainWaiters(): void {
    for (const wake of [...this.#drainWaiters]) wake();
  }

  /** Nothing more is written to a process that does not read what was; one that has stopped to read is of no use to anybody. */
  #isFull(): boolean {
    if (this.#child === undefined || this.#child.stdin.writableLength <= MAX_UNREAD_BYTES) {
      this.#fullSince = undefined;
      return false;
    }
    this.#fullSince ??= performance.now();
    if (performance.now() - this.#fullSince > MAX_UNREAD_MS) this.#child.kill('SIGKILL');
    return true;
  }

  #ensureRunning(): ChildProcessWithoutNullStreams | string {
    if (this.#closed) return 'the gateway is about to end';
    if (this.#child !== undefined) return this.#child;
    if (performance.now() < this.#mayStartAt) return `${this.#command[0]} ended a moment ago`;
    try {
      return this.#start();
    } catch (error) {
      return `${this.#command[0]} could not be started: ${(error as Error).message}`;
    }
  }

  /** Throws where there are not even descriptors for its streams. */
  #start(): ChildProcessWithoutNullStreams {
    const [file = '', ...args] = this.#command;
    const child = spawn(file, args, { env: this.#env, stdio: ['pipe', 'pipe', 'pipe'] });
    // First of all: an error that nobody hears ends the process.
    child.on('error', (error) => this.#handleExit(child, `${file} could not be started: ${error.message}`));
    for (const stream of [child.stdin, child.stdout, child.stderr]) stream.on('error', () => {});
    this.#startedAt = performance.now();
    this.#child = child;
    child.stdin.on('drain', () => this.#wakeDrainWaiters());
    // Its log is its own; but a pipe that nobody empties would stop it.
    child.stderr.resume();
    child.on('exit', (code, signal) => this.#handleExit(child, `${file} ended with ${signal ?? `code ${code}`}`));
    this.#readLines(child);
    return child;
  }

  #handleExit(child: ChildProcessWithoutNullStreams, detail: string): void {
    if (this.#child !== child) return;
    this.#child = undefined;
    this.#fullSince = undefined;
    const steady = performance.now() - this.#startedAt > STABLE_AFTER_MS;
    this.#backoffMs =
      steady || this.#backoffMs === 0 ? RESTART_BACKOFF.firstMs : Math.min(this.#backoffMs * 2, RESTART_BACKOFF.mostMs);
    this.#mayStartAt = performance.now() + this.#backoffMs;
    for (const { finish } of [...this.#pending.values()]) finish({ as: 'lost', detail });
    this.#notifyRestart();
    this.#wakeDrainWaiters();
  }

  #readLines(child: ChildProcessWithoutNullStreams): void {
    const gathered = new ByteAccumulator();
    child.stdout.on('data', (chunk: Buffer) => {
      let from = 0;
      for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, from)) {
        gathered.append(chunk.subarray(from, end));
        this.#handleLine(gathered.take());
        from = end + 1;
      }
      gathered.append(chunk.subarray(from));
      if (gathered.length <= MAX_MESSAGE_BYTES) return;
      // Nobody knows whose answer this would be, and memory must stay bounded.
      gathered.take();
      child.kill('SIGKILL');
    });
  }

  #handleLine(bytes: Buffer): void {
    try {
      const message = parseMessage(bytes.toString('utf8'));
      if (message !== undefined) this.#handleMessage(message, bytes.length);
    } catch {
      // Whoever was to hear it could not take it. A throw from here would end the process, and all its calls with it.
    }
  }

  #handleMessage(message: JsonObject, size: number): void {
    const waiting = 'method' in message ? this.#findProgressTarget(message) : this.#pending.get(String(message['id']));
    if (waiting === undefined) return this.#notifyUnsolicited(message);
    if ('method' in message) {
      waiting.told += size;
      // Whoever is told of it may read it slowly: no call tells more on its way than it may answer.
      return waiting.told > waiting.outgoing.mostBytes ? undefined : waiting.outgoing.heard(message);
    }
    if (size > waiting.outgoing.mostBytes)
      return waiting.finish({ as: 'lost', detail: `the answer is larger than ${waiting.outgoing.mostBytes} bytes` });
    waiting.finish({ as: 'answered', response: message, headers: {} });
  }

  /** Only progress names its request. Whom anything else is about nobody can say, also if but one is waited for here. */
  #findProgressTarget(message: JsonObject): PendingRequest | undefined {
    const params = message['params'];
    const token = isJsonObject(params) ? params['progressToken'] : undefined;
    return token === undefined ? undefined : this.#pending.get(String(token));
  }
}
