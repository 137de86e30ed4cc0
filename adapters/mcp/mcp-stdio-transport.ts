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

/** The first and the longest pause before a server that died is started again. */
const RESTART_BACKOFF = { firstMs: 100, maxMs: 10_000 };
const NEWLINE = 10;
/** A server that ran for this long starts again with the first pause. */
const STABLE_AFTER_MS = 30_000;
const TERMINATE_AFTER_MS = 2_000;

/** Writes stop while more bytes than this wait for the server to read them. */
const MAX_UNREAD_BYTES = 4 * 1024 * 1024;
/** A server that does not read its input for this long is killed. */
const MAX_UNREAD_MS = 10_000;

const ACCEPTED: ExchangeResult = { as: 'status', status: 202, text: '', headers: {} };

interface PendingRequest {
  readonly outgoing: OutgoingMessage;
  readonly finish: (ended: ExchangeResult) => void;
  /** The bytes of notifications about the request so far. */
  notifiedBytes: number;
}

/**
 * MCP over the standard streams of a child process, one message per line. The process starts when it is first needed, and again
 * after it died. Requests in flight at its death are lost: their outcome is unknown.
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
  /** Exchanges that wait until the process has read its input. */
  readonly #drainWaiters = new Set<() => void>();
  #notifyUnsolicited: (message: JsonObject) => void = () => {};
  #notifyRestart: () => void = () => {};
  #closed = false;

  constructor(command: readonly string[], env: Readonly<Record<string, string>>) {
    this.#command = command;
    this.#env = env;
  }

  onUnsolicited(listener: (message: JsonObject) => void): void {
    this.#notifyUnsolicited = listener;
  }

  onRestart(listener: () => void): void {
    this.#notifyRestart = listener;
  }

  async exchange(outgoing: OutgoingMessage): Promise<ExchangeResult> {
    const startedAt = performance.now();
    // Wait for at most half of the timeout: with little time left for the answer, the message would probably end in doubt.
    const leftMs = () => startedAt + outgoing.timeoutMs / 2 - performance.now();
    // Other waiters may have written meanwhile, so check again. Between the last check and the write there is no await.
    while (this.#isFull() && leftMs() > 0) await this.#waitForDrain(Math.min(leftMs(), MAX_UNREAD_MS));
    if (this.#isFull()) return { as: 'not_sent', detail: `${this.#command[0]} does not read its input` };
    const child = this.#ensureRunning();
    if (typeof child === 'string') return { as: 'not_sent', detail: child };
    if (!outgoing.maySend()) return { as: 'not_sent', detail: 'this replica lost its right to send', abandoned: true };
    return this.#write(child, outgoing, startedAt + outgoing.timeoutMs);
  }

  #write(child: ChildProcessWithoutNullStreams, outgoing: OutgoingMessage, deadline: number): Promise<ExchangeResult> {
    return new Promise((resolve) => {
      const { id } = outgoing.message;
      const line = `${JSON.stringify(outgoing.message)}\n`;
      // A reply resolves only when it is written, so that a server that does not read has few replies waiting.
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
      const timer = setTimeout(() => finish({ as: 'lost', detail }), deadline - performance.now());
      this.#pending.set(key, { outgoing, finish, notifiedBytes: 0 });
    });
  }

  /** Does nothing but wait: the output of a child process is always read. */
  async listen({ timeoutMs }: Omit<OutgoingMessage, 'message'>): Promise<void> {
    await sleep(timeoutMs, undefined, { ref: false });
  }

  async close(): Promise<void> {
    this.#closed = true;
    const child = this.#child;
    if (child === undefined) return;
    const exited = once(child, 'exit');
    child.stdin.end();
    const terminate = setTimeout(() => child.kill('SIGTERM'), TERMINATE_AFTER_MS);
    const kill = setTimeout(() => child.kill('SIGKILL'), 2 * TERMINATE_AFTER_MS);
    await exited;
    clearTimeout(terminate);
    clearTimeout(kill);
  }

  /** Waits until the process has read its input, or has ended. Waiters continue in order of arrival. */
  #waitForDrain(maxMs: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.#drainWaiters.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, maxMs);
      this.#drainWaiters.add(wake);
    });
  }

  #wakeDrainWaiters(): void {
    for (const wake of [...this.#drainWaiters]) wake();
  }

  /** Whether too much input is unread. Kills a process that has not read its input for too long, because it is useless. */
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
    if (this.#closed) return 'the gateway is shutting down';
    if (this.#child !== undefined) return this.#child;
    if (performance.now() < this.#mayStartAt) return `${this.#command[0]} ended a moment ago and is not restarted yet`;
    try {
      return this.#start();
    } catch (error) {
      return `${this.#command[0]} could not be started: ${(error as Error).message}`;
    }
  }

  /** Throws when the process has no file descriptors left for the streams. */
  #start(): ChildProcessWithoutNullStreams {
    const [file = '', ...args] = this.#command;
    const child = spawn(file, args, { env: this.#env, stdio: ['pipe', 'pipe', 'pipe'] });
    // Register this first: an `error` event without a listener ends the gateway.
    child.on('error', (error) => this.#handleExit(child, `${file} could not be started: ${error.message}`));
    for (const stream of [child.stdin, child.stdout, child.stderr]) stream.on('error', () => {});
    this.#startedAt = performance.now();
    this.#child = child;
    child.stdin.on('drain', () => this.#wakeDrainWaiters());
    // Discard the log of the server. A full pipe would stop the server.
    child.stderr.resume();
    child.on('exit', (code, signal) => this.#handleExit(child, `${file} ended with ${signal ?? `code ${code}`}`));
    this.#readLines(child);
    return child;
  }

  #handleExit(child: ChildProcessWithoutNullStreams, detail: string): void {
    if (this.#child !== child) return;
    this.#child = undefined;
    this.#fullSince = undefined;
    const wasStable = performance.now() - this.#startedAt > STABLE_AFTER_MS;
    this.#backoffMs =
      wasStable || this.#backoffMs === 0
        ? RESTART_BACKOFF.firstMs
        : Math.min(this.#backoffMs * 2, RESTART_BACKOFF.maxMs);
    this.#mayStartAt = performance.now() + this.#backoffMs;
    for (const { finish } of [...this.#pending.values()]) finish({ as: 'lost', detail });
    this.#notifyRestart();
    this.#wakeDrainWaiters();
  }

  #readLines(child: ChildProcessWithoutNullStreams): void {
    const line = new ByteAccumulator();
    child.stdout.on('data', (chunk: Buffer) => {
      let from = 0;
      for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, from)) {
        line.append(chunk.subarray(from, end));
        this.#handleLine(line.take());
        from = end + 1;
      }
      line.append(chunk.subarray(from));
      if (line.length <= MAX_MESSAGE_BYTES) return;
      // The line exceeds the memory limit, and the request that it answers is unknown. So end the process.
      line.take();
      child.kill('SIGKILL');
    });
  }

  #handleLine(bytes: Buffer): void {
    try {
      const message = parseMessage(bytes.toString('utf8'));
      if (message !== undefined) this.#handleMessage(message, bytes.length);
    } catch {
      // A listener failed. An error thrown here would end the gateway and all its calls.
    }
  }

  #handleMessage(message: JsonObject, size: number): void {
    const request = 'method' in message ? this.#findProgressTarget(message) : this.#pending.get(String(message['id']));
    if (request === undefined) return this.#notifyUnsolicited(message);
    if ('method' in message) {
      request.notifiedBytes += size;
      // The client may read slowly, so notifications of one call are limited to the size of its answer.
      return request.notifiedBytes > request.outgoing.maxBytes ? undefined : request.outgoing.onMessage(message);
    }
    if (size > request.outgoing.maxBytes)
      return request.finish({ as: 'lost', detail: `the answer is larger than ${request.outgoing.maxBytes} bytes` });
    request.finish({ as: 'answered', response: message, headers: {} });
  }

  /** Only progress notifications name their request. Any other message belongs to no request, even if only one is pending. */
  #findProgressTarget(message: JsonObject): PendingRequest | undefined {
    const params = message['params'];
    const token = isJsonObject(params) ? params['progressToken'] : undefined;
    return token === undefined ? undefined : this.#pending.get(String(token));
  }
}
