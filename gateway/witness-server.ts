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

export interface Answer {
  readonly status: number;
  readonly body: string;
  readonly type?: string;
}

/** Sixty-three hashes and a note are far less. */
const MOST_BYTES = 65_536;
const MOST_HASHES = 63;
const NOTHING: Pick<LogCheckpoint, 'size' | 'root'> = { size: 0, root: EMPTY_ROOT };

interface Question {
  readonly old: number;
  readonly proof: readonly Buffer[];
  readonly note: string;
}

/**
 * A witness (C2SP tlog-witness): keeps the newest checkpoint of each log it knows, and cosigns another only when that is proved
 * to extend it. It holds nothing of the logs themselves; all it is good for is that it cannot be talked out of what it saw.
 */
export class WitnessServer {
  readonly #key: NoteSigner;
  readonly #logs: ReadonlyMap<string, NoteVerifier>;
  readonly #directory: string;
  /** One question about a log at a time. */
  readonly #last = new Map<string, Promise<unknown>>();

  constructor(key: NoteSigner, logs: readonly string[], directory: string) {
    this.#key = key;
    this.#logs = new Map(logs.map((text) => new NoteVerifier(text)).map((log) => [log.name, log]));
    this.#directory = directory;
  }

  async addCheckpoint(body: string): Promise<Answer> {
    let asked: Question;
    let origin: string;
    try {
      asked = readQuestion(body);
      origin = parseLogCheckpoint(asked.note).origin;
    } catch (error) {
      return refuse(400, error);
    }
    const log = this.#logs.get(origin);
    if (log === undefined) return { status: 404, body: `${origin} is not a log that this witness knows\n` };
    const turn = (this.#last.get(origin) ?? Promise.resolve()).then(() => this.#consider(log, asked));
    this.#last.set(
      origin,
      turn.catch(() => {}),
    );
    return turn;
  }

  async #consider(log: NoteVerifier, { old, proof, note }: Question): Promise<Answer> {
    let shown: LogCheckpoint;
    try {
      shown = log.verifyCheckpoint(note);
    } catch (error) {
      return refuse(403, error);
    }
    if (old > shown.size)
      return refuse(400, new NoteError(`old ${old} is more than the ${shown.size} of the checkpoint`));
    const files = new CheckpointFiles(join(this.#directory, sha256Hex(log.name).slice(0, 32)));
    const kept = await files.readNewest();
    const seen = kept === undefined ? NOTHING : log.verifyCheckpoint(kept);
    const isSame = seen.size === shown.size && seen.root.equals(shown.root);
    if (old !== seen.size || (seen.size === shown.size && !isSame))
      return { status: 409, body: `${seen.size}\n`, type: 'text/x.tlog.size' };
    if (!verifyConsistency(seen, shown, proof))
      return { status: 422, body: `this does not extend what was seen at ${seen.size}\n` };
    // Kept first: a cosignature that was given away must be remembered whatever happens next.
    if (!isSame) await files.write(note, shown.size);
    return { status: 200, body: this.#key.cosign(note, Math.floor(Date.now() / 1000)) };
  }
}

/** Serves `POST …/add-checkpoint`, whatever stands before it. */
export function serveWitness(witness: WitnessServer): Server {
  return createServer((request, response) => {
    const told = (answer: Answer) =>
      response
        .writeHead(answer.status, { 'content-type': answer.type ?? 'text/plain; charset=utf-8' })
        .end(answer.body);
    answerTo(witness, request).then(told, () =>
      told({ status: 500, body: 'the witness could not keep what it saw\n' }),
    );
  });
}

async function answerTo(witness: WitnessServer, request: IncomingMessage): Promise<Answer> {
  if (!request.url?.endsWith('/add-checkpoint')) return { status: 404, body: 'there is only POST /add-checkpoint\n' };
  if (request.method !== 'POST') return { status: 405, body: 'only POST\n' };
  const bytes = new ByteAccumulator();
  for await (const chunk of request as AsyncIterable<Buffer>) {
    if (bytes.length + chunk.length > MOST_BYTES) return { status: 413, body: `more than ${MOST_BYTES} bytes\n` };
    bytes.append(chunk);
  }
  return witness.addCheckpoint(bytes.take().toString('utf8'));
}

/** `old <size>`, the hashes of the proof a line each, an empty line, the checkpoint. */
function readQuestion(body: string): Question {
  const end = body.indexOf('\n\n');
  const [first = '', ...lines] = body.slice(0, Math.max(0, end)).split('\n');
  const [, old] = /^old (0|[1-9]\d{0,14})$/.exec(first) ?? [];
  const proof = lines.map((line) => Buffer.from(line, 'base64'));
  const isGood = proof.every((hash, i) => hash.length === HASH_BYTES && hash.toString('base64') === lines[i]);
  if (end < 0 || old === undefined || proof.length > MOST_HASHES || !isGood)
    throw new NoteError('it is not: old <size>, hashes in base64, an empty line, a checkpoint');
  return { old: Number(old), proof, note: body.slice(end + 2) };
}

function refuse(status: number, error: unknown): Answer {
  if (!(error instanceof NoteError)) throw error;
  return { status, body: `${error.message}\n` };
}
