import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { findFreePort } from '../support/gateway.ts';

const SERVER_SCRIPT = fileURLToPath(new URL('./server.mjs', import.meta.url));

/** An effect as the server's journal records it. */
export type McpEffect = {
  n: number;
  tool: string;
  id: string | null;
  key: string | null;
  argsSha256: string;
  said?: string;
};

/** A request as the server received it. */
export type ObservedMcpRequest = {
  method: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into requests of every shape
  params: any;
  headers: Record<string, string>;
  id: string | null;
  rpcId: unknown;
};

/** One step of the server for a call. Without steps, the server applies the call and answers. */
export type McpFaultStep =
  | 'apply'
  | 'drop'
  | 'headers'
  | 'hang'
  | 'end'
  | 'garbage'
  | 'exit'
  | 'wrongId'
  | 'twice'
  | { delay: number }
  | { event: string }
  | { wait: string }
  | { kill: number }
  | { say: { method: string; params: object } }
  | { raw: string }
  | { status: number }
  /** An HTTP status with a JSON-RPC error whose id is null. */
  | { refuse: { status: number; code: number } }
  | { big: number }
  | { deep: number }
  | { isError: string }
  | { error: { code: number; message: string; data?: unknown } }
  | { later: number };

export type McpFaultPlan = {
  match?: { tool?: string; id?: string; method?: string };
  do: McpFaultStep[];
  times?: number;
};
export type ProtocolEra = 'both' | 'legacy' | 'modern';

/** The control routes of a running MCP server. */
export class McpServerControl {
  port: number;

  constructor(port: number) {
    this.port = port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}/mcp`;
  }

  effects = (): Promise<McpEffect[]> => this.#request('GET', '/_effects') as Promise<McpEffect[]>;
  requests = (): Promise<ObservedMcpRequest[]> => this.#request('GET', '/_requests') as Promise<ObservedMcpRequest[]>;
  pid = (): Promise<number> => this.#request('GET', '/_pid') as Promise<number>;
  plan = (plan: McpFaultPlan) => this.#request('POST', '/_plan', plan);
  /** Changes the definition of a tool, or adds a tool. */
  setTool = (tool: { name: string; [about: string]: unknown }) => this.#request('POST', '/_tool', tool);
  removeTool = (name: string) => this.#request('POST', '/_remove-tool', { name });
  /** Appends `extra` tools to the list, or follows it with a number of empty `pages`. */
  setListing = (listing: { extra?: object[]; pages?: number }) => this.#request('POST', '/_listing', listing);
  setEra = (era: ProtocolEra) => this.#request('POST', '/_era', era);
  /** Sends a notification to all listening clients. */
  notify = (notification: { message?: object; raw?: string; times?: number }) =>
    this.#request('POST', '/_notify', notification);
  forgetSessions = () => this.#request('POST', '/_forget-sessions');
  release = (latch: string) => this.#request('POST', '/_release', latch);
  reset = () => this.#request('POST', '/_reset');
  /** Events are `received:<id>`, `applied:<id>`, a method, `initialize`, `listening`, or the name of an `{event}` step. */
  awaitEvent = (event: string, count = 1) =>
    this.#request('GET', `/_await?${new URLSearchParams({ event, count: String(count) })}`);

  /** Changes a tool and notifies all listening clients. */
  async changeTool(tool: { name: string; [about: string]: unknown }): Promise<void> {
    await this.setTool(tool);
    await this.notify({ message: { method: 'notifications/tools/list_changed' } });
  }

  async #request(method: string, path: string, body?: unknown): Promise<unknown> {
    const response = await fetch(`http://127.0.0.1:${this.port}${path}`, {
      method,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${await response.text()}`);
    return response.json();
  }
}

export class TestMcpServer extends McpServerControl {
  readonly #directory: string;
  readonly #args: readonly string[];
  #child: ChildProcess;

  constructor(directory: string, args: readonly string[], child: ChildProcess, port: number) {
    super(port);
    this.#directory = directory;
    this.#args = args;
    this.#child = child;
  }

  /** Kills the process. Its effects survive; its plans and sessions do not. */
  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const gone = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await gone;
  }

  async restart(): Promise<void> {
    await this.kill();
    this.#child = (await spawnServer([...this.#args, '--port', String(this.port)])).child;
  }

  async stop(): Promise<void> {
    await this.kill();
    await rm(this.#directory, { recursive: true, force: true });
  }
}

/** Starts a process that speaks MCP over HTTP. It exits when its stdin closes, so it never outlives the tests. */
export async function startTestMcpServer(options: { era?: ProtocolEra; label?: string } = {}): Promise<TestMcpServer> {
  const directory = await mkdtemp(join(tmpdir(), 'oncegate-mcp-'));
  const args = ['--journal', join(directory, 'effects.jsonl'), '--tether', '--era', options.era ?? 'both'];
  args.push('--label', options.label ?? 'world');
  const { child, port } = await spawnServer(args);
  return new TestMcpServer(directory, args, child, port);
}

async function spawnServer(args: readonly string[]): Promise<{ child: ChildProcess; port: number }> {
  const child = spawn(process.execPath, [SERVER_SCRIPT, ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.on('error', () => {});
  for await (const line of createInterface({ input: child.stdout })) {
    const [, port] = /^listening (\d+)$/.exec(line) ?? [];
    if (port !== undefined) return { child, port: Number(port) };
  }
  throw new Error('The MCP server did not start.');
}

/** An MCP server that a gateway starts over stdio. `command` goes into the policies. */
export class TestStdioServer extends McpServerControl {
  readonly command: readonly string[];
  readonly #directory: string;
  readonly #journal: string;

  constructor(directory: string, port: number, era: ProtocolEra) {
    super(port);
    this.#directory = directory;
    this.#journal = join(directory, 'effects.jsonl');
    this.command = [
      process.execPath,
      SERVER_SCRIPT,
      '--stdio',
      '--journal',
      this.#journal,
      '--port',
      String(port),
      '--era',
      era,
    ];
  }

  /** Reads the journal, so that it also works while no server process runs. */
  override effects = async (): Promise<McpEffect[]> => {
    const text = await readFile(this.#journal, 'utf8');
    return text
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line) as McpEffect);
  };

  /** Resolves with the pid of the running server process, which differs from `after` if that is given. */
  async waitUntilRunning(after?: number): Promise<number> {
    for (;;) {
      const pid = await this.pid().catch(() => undefined);
      if (pid !== undefined && pid !== after) return pid;
      await sleep(20);
    }
  }

  async remove(): Promise<void> {
    await rm(this.#directory, { recursive: true, force: true });
  }
}

export async function createStdioServer(era: ProtocolEra = 'both'): Promise<TestStdioServer> {
  return new TestStdioServer(await mkdtemp(join(tmpdir(), 'oncegate-mcp-')), await findFreePort(), era);
}
