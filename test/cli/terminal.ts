import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { onTestFinished } from 'vitest';
import { run } from '../../gateway/cli/main.ts';

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
  /** What is typed when a verb asks; absent: nobody is there to be asked. */
  readonly types?: string;
  /** What comes in from a pipe. */
  readonly stdin?: AsyncIterable<Uint8Array | string>;
}

/** The command line in this process, with its two streams as text. */
export async function runCli(argv: readonly string[], setting: CliRunOptions = {}): Promise<CliResult> {
  const out: string[] = [];
  const err: string[] = [];
  const code = await run(argv, {
    stdout: { write: (text) => out.push(text), columns: setting.columns },
    stderr: { write: (text) => err.push(text) },
    stdin: setting.stdin ?? Readable.from([]),
    env: setting.env ?? {},
    cwd: setting.cwd ?? tmpdir(),
    isTty: setting.isTty ?? false,
    ...(setting.types === undefined ? {} : { ask: buildPrompt(setting.types, out) }),
  });
  return { code, out: out.join(''), err: err.join('') };
}

function buildPrompt(types: string, out: string[]): (question: string) => Promise<string> {
  return async (question) => {
    out.push(`${question}${types}\n`);
    return types;
  };
}

/** A directory with these files, gone when the test is. */
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

/** Says what it was told to say: for how answers are printed, never for what is true of a gateway. */
export async function startCannedServer(
  answer: (asked: ReceivedCliRequest) => CannedResponse,
): Promise<{ env: NodeJS.ProcessEnv; asked: ReceivedCliRequest[] }> {
  const asked: ReceivedCliRequest[] = [];
  const server = createServer((request, response) => {
    void readRequestBody(request).then((body) => {
      const url = new URL(request.url ?? '/', 'http://gateway');
      const question = { method: request.method ?? '', url, authorization: request.headers.authorization, body };
      asked.push(question);
      const { status = 200, type = 'application/json', headers = {}, body: reply } = answer(question);
      response.writeHead(status, { 'content-type': type, connection: 'close', ...headers });
      response.end(typeof reply === 'string' ? reply : JSON.stringify(reply));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => new Promise<void>((resolve) => server.close(() => resolve())));
  const { port } = server.address() as AddressInfo;
  return { env: { ONCEGATE_URL: `http://127.0.0.1:${port}/`, ONCEGATE_KEY: 'og_person' }, asked };
}

/** An address at which nobody listens any more. */
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
