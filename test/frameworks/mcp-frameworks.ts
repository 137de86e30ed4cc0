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

/** What the framework returned to its agent. */
export interface FrameworkResult {
  readonly isError?: boolean;
  /** The content of the tool result, as JSON. */
  readonly content?: string;
  /** The message of the error that the framework threw. */
  readonly thrown?: string;
}

/** A framework in its own process, which makes one call at a time. */
export class FrameworkProcess {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  #stderrTail = '';

  constructor(framework: McpFramework, key: string) {
    this.#child = spawn(NODE_22, ['mcp-calls.mjs', framework, key], { cwd: HOME, stdio: ['pipe', 'pipe', 'pipe'] });
    this.#child.stderr?.on('data', (chunk: Buffer) => {
      this.#stderrTail = (this.#stderrTail + chunk.toString()).slice(-4_000);
    });
    if (this.#child.stdout === null) throw new Error('The process of the framework has no stdout.');
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /** Makes one call. `onConnected` runs after the client is connected and before it calls the tool. */
  async call(request: { url: string; tool: string; args: object }, onConnected: () => void): Promise<FrameworkResult> {
    this.#child.stdin?.write(`${JSON.stringify(request)}\n`);
    await this.#readLine((line) => line === 'ready');
    onConnected();
    this.#child.stdin?.write('go\n');
    return JSON.parse(await this.#readLine((line) => line.startsWith('{'))) as FrameworkResult;
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGKILL');
    if (this.#child.exitCode === null && this.#child.signalCode === null) await once(this.#child, 'exit');
  }

  /** Reads the next line that matches, and skips the lines that the framework itself prints. */
  async #readLine(matches: (line: string) => boolean): Promise<string> {
    for (;;) {
      const { value, done } = await this.#lines.next();
      if (done === true) throw new Error(`The process of the framework ended. Its last errors: ${this.#stderrTail}`);
      if (matches(value)) return value;
    }
  }
}
