import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ADMIN_KEY, AGENT_KEY } from './keys.ts';
import { pollUntil } from './poll.ts';

export * from './keys.ts';

export interface GatewayOptions {
  /** The policies, as YAML text by file name. */
  readonly policies: Readonly<Record<string, string>>;
  /** Absent: the embedded PostgreSQL under the gateway's own data directory. */
  readonly databaseUrl?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly config?: string;
  /** The gateway whose directories this one shares, as replicas do. */
  readonly beside?: Gateway;
}

export interface CallOptions {
  readonly key?: string;
  readonly agentKey?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly body: any;
}

/** Running gateways. Those that a failing test leaves behind are killed when the test process exits. */
const children = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});

/** A real gateway process, as a user starts it. */
export class Gateway {
  readonly home: string;
  readonly port: number;
  readonly options: GatewayOptions;
  output = '';
  #child: ChildProcess | undefined;

  constructor(home: string, port: number, options: GatewayOptions) {
    this.home = home;
    this.port = port;
    this.options = options;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get pid(): number {
    return this.#child?.pid ?? -1;
  }

  get isAlive(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** Starts the process without waiting until it is ready. */
  launch(env: Readonly<Record<string, string>> = {}): void {
    if (this.isAlive) throw new Error('This gateway is already running.');
    const { DATABASE_URL: _, PORT: __, HOST: ___, ...inherited } = process.env;
    this.#child = spawn(process.execPath, [resolve('bin/oncegate.js'), 'start'], {
      cwd: this.home,
      env: {
        ...inherited,
        NODE_ENV: 'production',
        PORT: String(this.port),
        ONCEGATE_POLICIES: join(this.home, 'policies'),
        ONCEGATE_DATA_DIR: join(this.home, 'data'),
        ...(this.options.databaseUrl === undefined ? {} : { DATABASE_URL: this.options.databaseUrl }),
        LOG_LEVEL: 'warn',
        ONCEGATE_WORKERS: '1',
        ...this.options.env,
        ...env,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const child = this.#child;
    children.add(child);
    child.once('exit', () => children.delete(child));
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.on('data', (chunk: Buffer) => {
        this.output = (this.output + chunk.toString()).slice(-20_000);
      });
    }
  }

  async start(env: Readonly<Record<string, string>> = {}): Promise<void> {
    this.launch(env);
    await this.waitUntilReady();
  }

  /** Starts the gateway unless it is running, for tests that may find it killed. */
  async ensureStarted(): Promise<void> {
    if (!this.isAlive) await this.start();
  }

  async restart(env: Readonly<Record<string, string>> = {}): Promise<void> {
    if (this.isAlive) await this.kill();
    await this.start(env);
  }

  async waitUntilReady(): Promise<void> {
    for (;;) {
      if (!this.isAlive) throw new Error(`The gateway exited before it was ready:\n${this.output}`);
      const response = await fetch(`${this.url}/readyz`).catch(() => undefined);
      await response?.arrayBuffer();
      if (response?.status === 200) return;
      await sleep(20);
    }
  }

  /** Resolves when the process has exited, for any reason. */
  async waitForExit(): Promise<{ code: number | null; signal: string | null }> {
    const child = this.#child;
    if (child === undefined) return { code: null, signal: null };
    if (this.isAlive) await once(child, 'exit');
    return { code: child.exitCode, signal: child.signalCode };
  }

  async kill(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    this.#child?.kill(signal);
    await this.waitForExit();
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  async stop(): Promise<{ code: number | null; signal: string | null }> {
    this.#child?.kill('SIGTERM');
    return this.waitForExit();
  }

  async dispose(): Promise<void> {
    if (this.isAlive) {
      this.#child?.kill('SIGCONT');
      await (this.options.databaseUrl === undefined ? this.stop() : this.kill());
    }
    if (this.options.beside === undefined) await rm(this.home, { recursive: true, force: true });
  }

  call(tool: string, args: unknown, options: CallOptions = {}): Promise<Reply> {
    const key = options.key === undefined ? {} : { 'idempotency-key': options.key };
    return this.request('POST', `/v1/tools/${tool}`, {
      body: typeof args === 'string' ? args : JSON.stringify(args),
      key: options.agentKey ?? AGENT_KEY,
      headers: { 'content-type': 'application/json', ...key, ...options.headers },
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
  }

  admin(method: string, path: string, body?: unknown): Promise<Reply> {
    return this.request(method, path, {
      key: ADMIN_KEY,
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
  }

  /** POST with a JSON body. */
  post(path: string, body: unknown, key: string = AGENT_KEY, headers: object = {}): Promise<Reply> {
    return this.request('POST', path, {
      key,
      body: typeof body === 'string' ? body : JSON.stringify(body),
      headers: { 'content-type': 'application/json', ...headers },
    });
  }

  get(path: string, key: string = AGENT_KEY): Promise<Reply> {
    return this.request('GET', path, { key });
  }

  async request(
    method: string,
    path: string,
    options: { body?: string; key?: string; headers?: Readonly<Record<string, string>>; signal?: AbortSignal } = {},
  ): Promise<Reply> {
    const response = await fetch(this.url + path, {
      method,
      redirect: 'manual',
      headers: { ...(options.key === undefined ? {} : { authorization: `Bearer ${options.key}` }), ...options.headers },
      ...(options.body === undefined ? {} : { body: options.body }),
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
    const text = await response.text();
    const isJson = /json/.test(response.headers.get('content-type') ?? '');
    return { status: response.status, headers: response.headers, body: isJson ? JSON.parse(text) : text };
  }

  /** Waits until a call satisfies a condition, and returns the call. The error shows the last reply. */
  async waitForCall(
    txn: string,
    condition: (call: Reply['body']) => boolean,
    withinMs = 30_000,
  ): Promise<Reply['body']> {
    const read = () => this.get(`/v1/calls/${txn}`).catch(() => undefined);
    const isReached = (reply: Reply | undefined) => reply?.status === 200 && condition(reply.body);
    const reply = await pollUntil(read, isReached, { withinMs, explain: () => `Call ${txn}.\n${this.output}` });
    return reply?.body;
  }
}

export async function makeGateway(options: GatewayOptions): Promise<Gateway> {
  const home = options.beside?.home ?? (await mkdtemp(join(tmpdir(), 'oncegate-gateway-')));
  const gateway = new Gateway(home, await findFreePort(), options);
  if (options.beside === undefined) {
    await writePolicies(gateway, options.policies);
    if (options.config !== undefined) await writeFile(join(home, 'oncegate.yaml'), options.config);
  }
  return gateway;
}

export async function startGateway(options: GatewayOptions): Promise<Gateway> {
  const gateway = await makeGateway(options);
  await gateway.start();
  return gateway;
}

export async function writePolicies(gateway: Gateway, policies: Readonly<Record<string, string>>): Promise<void> {
  await mkdir(join(gateway.home, 'policies'), { recursive: true });
  for (const [name, text] of Object.entries(policies)) await writeFile(join(gateway.home, 'policies', name), text);
}

export async function findFreePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
