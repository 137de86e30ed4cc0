import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { onTestFinished } from 'vitest';
import { runCommand } from '../../gateway/cli/main.ts';

export interface CliResult {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

export interface CliRunOptions {
  readonly env?: NodeJS.ProcessEnv;
  readonly cwd?: string;
  readonly isTty?: boolean;
  readonly columns?: number;
  /** The answer to a prompt. Absent: there is no terminal to ask on. */
  readonly types?: string;
  /** The content of standard input. */
  readonly stdin?: AsyncIterable<Uint8Array | string>;
}

/** Runs the command line in this process, and returns both streams as text. */
export async function runCli(argv: readonly string[], options: CliRunOptions = {}): Promise<CliResult> {
  const out: string[] = [];
  const err: string[] = [];
  const code = await runCommand(argv, {
    stdout: { write: (text) => out.push(text), columns: options.columns },
    stderr: { write: (text) => err.push(text) },
    stdin: options.stdin ?? Readable.from([]),
    env: options.env ?? {},
    cwd: options.cwd ?? tmpdir(),
    isTty: options.isTty ?? false,
    ...(options.types === undefined ? {} : { prompt: buildPrompt(options.types, out) }),
  });
  return { code, out: out.join(''), err: err.join('') };
}

function buildPrompt(types: string, out: string[]): (question: string) => Promise<string> {
  return async (question) => {
    out.push(`${question}${types}\n`);
    return types;
  };
}

/** Creates a directory with these files; it is removed after the test. */
export async function createDirectory(files: Readonly<Record<string, string>>): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'oncegate-cli-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  for (const [name, text] of Object.entries(files)) await writeFile(join(dir, name), text);
  return dir;
}

export interface CannedResponse {
  readonly status?: number;
  readonly type?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | object;
}

export interface ReceivedCliRequest {
  readonly method: string;
  readonly url: URL;
  readonly authorization: string | undefined;
  readonly body: string;
}

/** A server with fixed answers. It tests how the CLI prints answers, not how a gateway behaves. */
export async function startCannedServer(
  answer: (request: ReceivedCliRequest) => CannedResponse,
): Promise<{ env: NodeJS.ProcessEnv; requests: ReceivedCliRequest[] }> {
  const requests: ReceivedCliRequest[] = [];
  const server = createServer((request, response) => {
    void readRequestBody(request).then((body) => {
      const url = new URL(request.url ?? '/', 'http://gateway');
      const received = { method: request.method ?? '', url, authorization: request.headers.authorization, body };
      requests.push(received);
      const { status = 200, type = 'application/json', headers = {}, body: reply } = answer(received);
      response.writeHead(status, { 'content-type': type, connection: 'close', ...headers });
      response.end(typeof reply === 'string' ? reply : JSON.stringify(reply));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => new Promise<void>((resolve) => server.close(() => resolve())));
  const { port } = server.address() as AddressInfo;
  return { env: { ONCEGATE_URL: `http://127.0.0.1:${port}/`, ONCEGATE_KEY: 'og_person' }, requests };
}

/** Finds a local address at which no server listens. */
export async function findClosedAddress(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise<void>((resolve) => server.close(() => resolve()));
  return `http://127.0.0.1:${port}`;
}

async function readRequestBody(request: IncomingMessage): Promise<string> {
  let text = '';
  for await (const chunk of request) text += String(chunk);
  return text;
}
