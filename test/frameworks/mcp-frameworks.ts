import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { FRAMEWORKS_DIR as HOME, NODE_22 } from '../clients/install.ts';

export const MCP_FRAMEWORKS = [
  'sdk-v1',
  'sdk-v2',
  'ai-sdk',
  'ai-sdk-retries',
  'openai-agents',
  'langchain',
  'mastra',
] as const;
export type McpFramework = (typeof MCP_FRAMEWORKS)[number];

/** What the framework told its agent. */
export interface FrameworkResult {
  readonly isError?: boolean;
  readonly said?: string;
  readonly thrown?: string;
}

/** A framework in a process of its own, which makes calls one after the other. */
export class FrameworkProcess {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  #stderrTail = '';

  constructor(framework: McpFramework, key: string) {
    this.#child = spawn(NODE_22, ['mcp-calls.mjs', framework, key], { cwd: HOME, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#child.stderr?.on('data', (chunk: Buffer) => {
      this.#stderrTail = (this.#stderrTail + chunk.toString()).slice(-4_000);
    });
    if (this.#child.stdout === null) throw new Error('no output');
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /** `connected` runs between the connection and the call. */
  async call(wish: { url: string; tool: string; args: object }, connected: () => void): Promise<FrameworkResult> {
    this.#child.stdin?.write(`${JSON.stringify(wish)}\n`);
    await this.#readLine((line) => line === 'ready');
    connected();
    this.#child.stdin?.write('go\n');
    return JSON.parse(await this.#readLine((line) => line.startsWith('{'))) as FrameworkResult;
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGKILL');
    if (this.#child.exitCode === null && this.#child.signalCode === null) await once(this.#child, 'exit');
  }

  /** Frameworks print this and that; only our own lines count. */
  async #readLine(isIt: (line: string) => boolean): Promise<string> {
    for (;;) {
      const { value, done } = await this.#lines.next();
      if (done === true) throw new Error(`the framework ended: ${this.#stderrTail}`);
      if (isIt(value)) return value;
    }
  }
}
