import { createServer, type IncomingMessage, type Server } from 'node:http';
import { join } from 'node:path';
import { CheckpointFiles } from '../adapters/checkpoint-files.ts';
import { sha256Hex } from './domain/audit/audit.ts';
import { EMPTY_ROOT, HASH_BYTES, verifyConsistency } from './domain/audit/merkle.ts';
import {
  type LogCheckpoint,
  NoteError,
  type NoteSigner,
  NoteVerifier,
  parseLogCheckpoint,
} from './domain/audit/signed-note.ts';
import { ByteAccumulator } from './domain/byte-accumulator.ts';

export interface WitnessResponse {
  readonly status: number;
  readonly body: string;
  readonly type?: string;
}

/** Far more than 63 hashes and a note. */
const MAX_BODY_BYTES = 65_536;
const MAX_PROOF_HASHES = 63;
const EMPTY_LOG: Pick<LogCheckpoint, 'size' | 'root'> = { size: 0, root: EMPTY_ROOT };

interface AddCheckpointRequest {
  readonly old: number;
  readonly proof: readonly Buffer[];
  readonly note: string;
}

/**
 * A witness (C2SP tlog-witness). It keeps the newest checkpoint of each known log, and cosigns a newer one only with a
 * proof that it extends the old one. It stores no log entries.
 */
export class WitnessServer {
  readonly #key: NoteSigner;
  readonly #logs: ReadonlyMap<string, NoteVerifier>;
  readonly #directory: string;
  /** Serialises the requests for each log. */
  readonly #queues = new Map<string, Promise<unknown>>();

  constructor(key: NoteSigner, logs: readonly string[], directory: string) {
    this.#key = key;
    this.#logs = new Map(logs.map((text) => new NoteVerifier(text)).map((log) => [log.name, log]));
    this.#directory = directory;
  }

  async addCheckpoint(body: string): Promise<WitnessResponse> {
    let request: AddCheckpointRequest;
    let origin: string;
    try {
      request = parseRequest(body);
      origin = parseLogCheckpoint(request.note).origin;
    } catch (error) {
      return buildRefusal(400, error);
    }
    const log = this.#logs.get(origin);
    if (log === undefined) return { status: 404, body: `this witness does not know the log ${origin}\n` };
    const turn = (this.#queues.get(origin) ?? Promise.resolve()).then(() => this.#cosignIfConsistent(log, request));
    this.#queues.set(
      origin,
      turn.catch(() => {}),
    );
    return turn;
  }

  async #cosignIfConsistent(log: NoteVerifier, { old, proof, note }: AddCheckpointRequest): Promise<WitnessResponse> {
    let offered: LogCheckpoint;
    try {
      offered = log.verifyCheckpoint(note);
    } catch (error) {
      return buildRefusal(403, error);
    }
    if (old > offered.size)
      return buildRefusal(
        400,
        new NoteError(`old ${old} is larger than the checkpoint, which has ${offered.size} entries`),
      );
    const files = new CheckpointFiles(join(this.#directory, sha256Hex(log.name).slice(0, 32)));
    const stored = await files.readNewest();
    const seen = stored === undefined ? EMPTY_LOG : log.verifyCheckpoint(stored);
    const isSame = seen.size === offered.size && seen.root.equals(offered.root);
    if (old !== seen.size || (seen.size === offered.size && !isSame))
      return { status: 409, body: `${seen.size}\n`, type: 'text/x.tlog.size' };
    if (!verifyConsistency(seen, offered, proof))
      return { status: 422, body: `the checkpoint does not extend the stored one of size ${seen.size}\n` };
    // Stored first: a crash after the answer must not forget a checkpoint that was cosigned.
    if (!isSame) await files.write(note, offered.size);
    return { status: 200, body: this.#key.cosign(note, Math.floor(Date.now() / 1000)) };
  }
}

/** Serves `POST …/add-checkpoint` under any path prefix. */
export function createWitnessServer(witness: WitnessServer): Server {
  return createServer((request, response) => {
    const send = (answer: WitnessResponse) =>
      response
        .writeHead(answer.status, { 'content-type': answer.type ?? 'text/plain; charset=utf-8' })
        .end(answer.body);
    handleRequest(witness, request).then(send, () =>
      send({ status: 500, body: 'the witness could not store the checkpoint\n' }),
    );
  });
}

async function handleRequest(witness: WitnessServer, request: IncomingMessage): Promise<WitnessResponse> {
  if (!request.url?.endsWith('/add-checkpoint')) return { status: 404, body: 'use POST /add-checkpoint\n' };
  if (request.method !== 'POST') return { status: 405, body: 'use POST\n' };
  const bytes = new ByteAccumulator();
  for await (const chunk of request as AsyncIterable<Buffer>) {
    if (bytes.length + chunk.length > MAX_BODY_BYTES)
      return { status: 413, body: `the body must be at most ${MAX_BODY_BYTES} bytes\n` };
    bytes.append(chunk);
  }
  return witness.addCheckpoint(bytes.take().toString('utf8'));
}

/** The body: `old <size>`, one hash of the proof per line, an empty line, the checkpoint. */
function parseRequest(body: string): AddCheckpointRequest {
  const end = body.indexOf('\n\n');
  const [first = '', ...lines] = body.slice(0, Math.max(0, end)).split('\n');
  const [, old] = /^old (0|[1-9]\d{0,14})$/.exec(first) ?? [];
  const proof = lines.map((line) => Buffer.from(line, 'base64'));
  const isValid = proof.every((hash, i) => hash.length === HASH_BYTES && hash.toString('base64') === lines[i]);
  if (end < 0 || old === undefined || proof.length > MAX_PROOF_HASHES || !isValid)
    throw new NoteError('the body must be: old <size>, hashes in base64, an empty line, a checkpoint');
  return { old: Number(old), proof, note: body.slice(end + 2) };
}

function buildRefusal(status: number, error: unknown): WitnessResponse {
  if (!(error instanceof NoteError)) throw error;
  return { status, body: `${error.message}\n` };
}
