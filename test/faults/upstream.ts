import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const UPSTREAM_SCRIPT = fileURLToPath(new URL('./upstream.mjs', import.meta.url));

/** One request as the upstream received it. `complete` is false if the sender disconnected before the end of the body. */
export type UpstreamRequest = {
  n: number;
  method: string;
  url: string;
  headers: Record<string, string | string[]>;
  id: string | null;
  key: string | null;
  /** Method and path without the variable segment, such as `POST /probed/orders`. */
  route: string;
  complete: boolean;
  bodySha256: string | null;
  body: string | null;
  at: number;
  socket: number;
  connectionSerial: number;
};

/** One line of the journal: an effect. `request` is the `n` of the request that caused it. */
export type UpstreamEffect = {
  n: number;
  id: string | null;
  route: string;
  method: string;
  key: string | null;
  target: string | null;
  bodySha256: string;
  body?: unknown;
  response: { id: string; t: string | null; [field: string]: unknown };
  request: number;
  at: number;
};

export type UpstreamFaultStep =
  | 'apply'
  | 'drop'
  | 'reset'
  | 'partial'
  | 'garbage'
  | 'hang'
  | { delay: number }
  | { reply: number; body?: unknown; headers?: Record<string, string> }
  | { redirect: string }
  | { 'late-apply': number }
  | { kill: number; signal?: NodeJS.Signals }
  | { 'kill-all': number[] }
  | { stop: number }
  | { lie: number }
  | { big: number }
  | { event: string }
  | { wait: string };

/**
 * `path` may end in `*`. `nth` counts, from 1, the requests since the plan was made that fit the rest of `match`. `times` defaults
 * to 1.
 */
export type UpstreamFaultPlan = {
  match?: { id?: string; path?: string; method?: string; nth?: number };
  do: UpstreamFaultStep[];
  times?: number | 'always';
};

export type EffectReport = {
  count: number;
  entries: UpstreamEffect[];
  mismatches: { id: string | null; key: string; request: number }[];
  reads: number;
  probes: number;
};
export type ConnectionStats = {
  open: number;
  total: number;
  concurrent: number;
  maxConcurrent: number;
  unreadable: number;
};

export type TestUpstream = {
  readonly url: string;
  readonly port: number;
  readonly pid: number;
  readonly journal: string;
  effects(id?: string): Promise<UpstreamEffect[]>;
  /** Effects, key mismatches, and the numbers of reads and probes. */
  report(id?: string): Promise<EffectReport>;
  requests(id?: string): Promise<UpstreamRequest[]>;
  connections(): Promise<ConnectionStats>;
  plan(plan: UpstreamFaultPlan): Promise<void>;
  release(name: string): Promise<void>;
  /**
   * Resolves when the event `name` has happened `count` times since the last reset. Events are the names of `{event}` steps and
   * `received`, `applied`, `closed` (the caller left before the answer), `cut` (the caller left during its request), `mismatch`
   * and `error`. Each also exists per id, such as `applied:<id>`.
   */
  awaitEvent(name: string, count?: number, timeoutMs?: number): Promise<void>;
  /** Forgets plans, effects, requests and events. Requests in flight are cut and have no effect any more. */
  reset(): Promise<void>;
  /** Sends SIGKILL. Effects and requests are kept; plans and events are lost. */
  kill(): Promise<void>;
  restart(): Promise<void>;
  stop(): Promise<void>;
};

export async function startUpstream(options: { journal?: string; port?: number } = {}): Promise<TestUpstream> {
  const directory = options.journal === undefined ? await mkdtemp(join(tmpdir(), 'oncegate-upstream-')) : undefined;
  const journal = options.journal ?? join(directory ?? '', 'effects.jsonl');
  let { child, port } = await spawnUpstream(journal, options.port ?? 0);

  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  };
  const control = (method: string, path: string, body?: unknown) => requestControl(port, method, path, body);
  const buildIdQuery = (id: string | undefined) => (id === undefined ? '' : `?${new URLSearchParams({ id })}`);
  const report = async (id?: string) => (await control('GET', `/_effects${buildIdQuery(id)}`)) as EffectReport;

  return {
    get url() {
      return `http://127.0.0.1:${port}`;
    },
    get port() {
      return port;
    },
    get pid() {
      return child.pid ?? -1;
    },
    journal,
    report,
    effects: async (id) => (await report(id)).entries,
    requests: async (id) =>
      ((await control('GET', `/_requests${buildIdQuery(id)}`)) as { entries: UpstreamRequest[] }).entries,
    connections: async () => (await control('GET', '/_connections')) as ConnectionStats,
    plan: async (plan) => void (await control('POST', '/_plan', plan)),
    release: async (name) => void (await control('POST', '/_release', { name })),
    awaitEvent: async (name, count = 1, timeoutMs = 30_000) => {
      const query = new URLSearchParams({ event: name, count: String(count), timeout: String(timeoutMs) });
      await control('GET', `/_await?${query}`);
    },
    reset: async () => void (await control('POST', '/_reset')),
    kill,
    restart: async () => {
      await kill();
      ({ child, port } = await respawnUpstream(journal, port));
    },
    stop: async () => {
      await kill();
      if (directory !== undefined) await rm(directory, { recursive: true, force: true });
    },
  };
}

/** The upstream exits when its stdin closes, so it never outlives the test worker. */
async function spawnUpstream(journal: string, port: number): Promise<{ child: ChildProcess; port: number }> {
  const args = [UPSTREAM_SCRIPT, '--port', String(port), '--journal', journal, '--tether'];
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout });
  child.stdin.on('error', () => {});
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) =>
      reject(new Error(`The upstream exited with ${code ?? signal} before it was listening.`)),
    );
    lines.on('line', (line) => {
      const listeningPort = /^listening (\d+)$/.exec(line)?.[1];
      if (listeningPort !== undefined) resolve({ child, port: Number(listeningPort) });
    });
  });
}

/** Retries, because a client that connects to a closed loopback port can connect to itself and hold the port for a moment. */
async function respawnUpstream(journal: string, port: number): Promise<{ child: ChildProcess; port: number }> {
  for (let left = 40; ; left--) {
    try {
      return await spawnUpstream(journal, port);
    } catch (error) {
      if (left === 0) throw error;
      await sleep(50);
    }
  }
}

/** Each control request has its own connection, so that it never uses a socket that the test is about to break. */
function requestControl(port: number, method: string, path: string, body?: unknown): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const fail = (reason: unknown) =>
      reject(new Error(`${method} ${path}: ${reason instanceof Error ? reason.message : reason}`));
    const request = http.request({ host: '127.0.0.1', port, method, path, agent: false }, (response) => {
      const chunks: Buffer[] = [];
      response.on('error', fail);
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString('utf8');
        if (response.statusCode === 200) resolve(JSON.parse(text));
        else fail(`${response.statusCode} ${text}`);
      });
    });
    request.on('error', fail);
    request.end(body === undefined ? undefined : JSON.stringify(body));
  });
}
