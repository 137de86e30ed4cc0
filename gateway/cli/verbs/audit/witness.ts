import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { resolve } from 'node:path';
import { NoteError, NoteSigner, NoteVerifier } from '../../../domain/audit/signed-note.ts';
import { loadWitnessKey } from '../../../secret-files.ts';
import { createWitnessServer, WitnessServer } from '../../../witness-server.ts';
import { type Invocation, UsageError, type Verb, VerbError } from '../../verb.ts';

export const witnessVerb: Verb = {
  name: 'witness',
  summary: 'run a witness, which cosigns checkpoints of audit logs',
  options: {
    log: { value: 'KEY', required: true, many: true, help: 'the public key of a log (from GET /admin/audit/key)' },
    name: { value: 'NAME', help: 'the name of the witness, such as witness.example.com (default oncegate-witness)' },
    dir: { value: 'DIR', help: 'where the witness stores its key and checkpoints (default .oncegate-witness)' },
    listen: { value: 'HOST:PORT', help: 'address to listen on (default 127.0.0.1:8090)' },
  },
  run: async (invocation) => {
    const { io, out, texts } = invocation;
    const directory = resolve(io.cwd, invocation.text('dir') ?? '.oncegate-witness');
    const logs = texts('log').map(parseLogKey);
    const signer = await loadSigner(invocation, directory);
    const server = createWitnessServer(new WitnessServer(signer, logs, directory));
    const { host, port } = parseListenAddress(invocation.text('listen') ?? '127.0.0.1:8090');
    server.listen(port, host);
    await once(server, 'listening').catch((error: NodeJS.ErrnoException) => {
      throw new VerbError(
        'no_port',
        `Cannot listen on ${host}:${port}: ${error.code ?? error.message}. Choose another address with --listen.`,
      );
    });
    const url = `http://${host.includes(':') ? `[${host}]` : host}:${(server.address() as AddressInfo).port}`;
    out.printJson({ url, key: signer.verifier });
    out.printLine(`${url}\t${signer.verifier}`);
    await waitForSignal(invocation);
    server.closeAllConnections();
    server.close();
    return 0;
  },
};

async function loadSigner({ text }: Invocation, directory: string): Promise<NoteSigner> {
  const name = text('name') ?? 'oncegate-witness';
  if (!/^[\w./-]+$/.test(name)) throw new UsageError('--name must be a name such as witness.example.com');
  try {
    return NoteSigner.fromPem(name, await loadWitnessKey(directory), 'witness');
  } catch (error) {
    if (!(error instanceof NoteError)) throw error;
    throw new VerbError('bad_key', `${directory}/witness.key: ${error.message}`);
  }
}

function parseLogKey(text: string): string {
  try {
    return new NoteVerifier(text).text;
  } catch (error) {
    if (!(error instanceof NoteError)) throw error;
    throw new UsageError(`--log ${JSON.stringify(text)}: ${error.message}`);
  }
}

function parseListenAddress(text: string): { host: string; port: number } {
  const [, host = '', port = ''] = /^\[?([^\]]+)\]?:(\d{1,5})$/.exec(text) ?? [];
  if (host === '' || Number(port) > 65_535)
    throw new UsageError(`--listen must be HOST:PORT (got ${JSON.stringify(text)})`);
  return { host, port: Number(port) };
}

/** Resolves on Ctrl-C or SIGTERM. */
async function waitForSignal({ io }: Invocation): Promise<void> {
  await new Promise<void>((resolve) => {
    io.onInterrupt?.(resolve);
    process.once('SIGTERM', () => resolve());
  });
}
