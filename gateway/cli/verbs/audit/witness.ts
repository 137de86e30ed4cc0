import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { resolve } from 'node:path';
import { NoteError, NoteSigner, NoteVerifier } from '../../../domain/audit/signed-note.ts';
import { witnessKey } from '../../../secret-files.ts';
import { serveWitness, WitnessServer } from '../../../witness-server.ts';
import { type Invocation, NotGood, UsageError, type Verb } from '../../verb.ts';

export const witnessVerb: Verb = {
  name: 'witness',
  summary: 'remember checkpoints of logs, cosign what extends them',
  options: {
    log: { value: 'KEY', required: true, many: true, help: 'the public key of a log (GET /admin/audit/key)' },
    name: { value: 'NAME', help: 'what it is called, such as witness.example.com (default oncegate-witness)' },
    dir: { value: 'DIR', help: 'where it keeps its key and what it saw (default .oncegate-witness)' },
    listen: { value: 'HOST:PORT', help: 'where it listens (default 127.0.0.1:8090)' },
  },
  run: async (invocation) => {
    const { io, out, texts } = invocation;
    const directory = resolve(io.cwd, invocation.text('dir') ?? '.oncegate-witness');
    const logs = texts('log').map(logOf);
    const key = await keyOf(invocation, directory);
    const server = serveWitness(new WitnessServer(key, logs, directory));
    const { host, port } = placeOf(invocation.text('listen') ?? '127.0.0.1:8090');
    server.listen(port, host);
    await once(server, 'listening').catch((error: NodeJS.ErrnoException) => {
      throw new NotGood('no_port', `cannot listen on ${host}:${port}: ${error.code ?? error.message}`);
    });
    const url = `http://${host.includes(':') ? `[${host}]` : host}:${(server.address() as AddressInfo).port}`;
    out.json({ url, key: key.verifier });
    out.line(`${url}\t${key.verifier}`);
    await ended(invocation);
    server.closeAllConnections();
    server.close();
    return 0;
  },
};

async function keyOf({ text }: Invocation, directory: string): Promise<NoteSigner> {
  const name = text('name') ?? 'oncegate-witness';
  if (!/^[\w./-]+$/.test(name)) throw new UsageError('--name is not a name such as witness.example.com');
  try {
    return NoteSigner.fromPem(name, await witnessKey(directory), 'witness');
  } catch (error) {
    if (!(error instanceof NoteError)) throw error;
    throw new NotGood('bad_key', `${directory}/witness.key: ${error.message}`);
  }
}

function logOf(text: string): string {
  try {
    return new NoteVerifier(text).text;
  } catch (error) {
    if (!(error instanceof NoteError)) throw error;
    throw new UsageError(`--log ${JSON.stringify(text)}: ${error.message}`);
  }
}

function placeOf(text: string): { host: string; port: number } {
  const [, host = '', port = ''] = /^\[?([^\]]+)\]?:(\d{1,5})$/.exec(text) ?? [];
  if (host === '' || Number(port) > 65_535) throw new UsageError(`--listen ${JSON.stringify(text)} is not HOST:PORT`);
  return { host, port: Number(port) };
}

/** Resolves when somebody ends it. */
async function ended({ io }: Invocation): Promise<void> {
  await new Promise<void>((resolve) => {
    io.onInterrupt?.(resolve);
    process.once('SIGTERM', () => resolve());
  });
}
