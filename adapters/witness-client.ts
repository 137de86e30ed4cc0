import { type LogCheckpoint, NoteVerifier } from '../gateway/domain/audit/signed-note.ts';
import { sendOutboundRequest } from './http/outbound-request.ts';

/** A witness from the configuration: its URL, and the public key of its cosignatures. */
export interface WitnessOptions {
  readonly url: string;
  readonly key: string;
  readonly allowPrivate: boolean;
}

/** The answer of a witness to a checkpoint. */
export type CosignResult =
  | { readonly as: 'cosigned'; readonly line: string }
  /** The witness has cosigned a larger log. */
  | { readonly as: 'ahead'; readonly size: number }
  | { readonly as: 'contradicted'; readonly why: string }
  /** The witness gave no usable answer, which says nothing about the log. */
  | { readonly as: 'silent'; readonly why: string };

const TIMEOUT_MS = 2_000;
const MAX_RESPONSE_BYTES = 65_536;
/** Another replica may show a checkpoint to the witness between two of our requests, so a request is repeated. */
const MAX_TRIES = 4;

/** A client of a C2SP tlog-witness. A witness cosigns only a checkpoint that extends all checkpoints it has cosigned. */
export class WitnessClient {
  readonly url: string;
  readonly #verifier: NoteVerifier;
  readonly #allowPrivate: boolean;
  /** The size that the witness had cosigned at its last answer. */
  #lastKnownSize = 0;

  constructor({ url, key, allowPrivate }: WitnessOptions) {
    this.url = url;
    this.#verifier = new NoteVerifier(key);
    this.#allowPrivate = allowPrivate;
  }

  /** `proofFrom` proves that this log extends the log of the given size. */
  async requestCosignature(
    note: string,
    { size }: LogCheckpoint,
    proofFrom: (size: number) => Promise<Buffer[]>,
  ): Promise<CosignResult> {
    for (let triesLeft = MAX_TRIES; triesLeft > 0; triesLeft--) {
      // The size that the proof starts at. The protocol calls it `old`.
      const old = Math.min(this.#lastKnownSize, size);
      const answer = await this.#postCheckpoint(old, await proofFrom(old), note);
      if (typeof answer === 'string') return { as: 'silent', why: answer };
      const { status, body } = answer;
      if (status === 200) return this.#acceptCosignature(note, size, body);
      if (status === 422)
        return { as: 'contradicted', why: `it cosigned a log of ${old} entries that this log does not extend` };
      if (status !== 409 || !/^\d{1,15}\n?$/.test(body)) return { as: 'silent', why: `it answered ${status}` };
      this.#lastKnownSize = Number(body);
      if (this.#lastKnownSize > size) return { as: 'ahead', size: this.#lastKnownSize };
      // The sizes agree, so the witness refused the root hash.
      if (this.#lastKnownSize === old) return { as: 'contradicted', why: `it cosigned another log of ${old} entries` };
    }
    return { as: 'silent', why: `it reported another size in each of ${MAX_TRIES} answers` };
  }

  async #postCheckpoint(
    old: number,
    proof: readonly Buffer[],
    note: string,
  ): Promise<{ status: number; body: string } | string> {
    const lines = [`old ${old}`, ...proof.map((hash) => hash.toString('base64'))];
    try {
      return await sendOutboundRequest({
        url: `${this.url.replace(/\/+$/, '')}/add-checkpoint`,
        method: 'POST',
        headers: { 'content-type': 'text/plain; charset=utf-8', 'user-agent': 'oncegate' },
        body: `${lines.join('\n')}\n\n${note}`,
        allowPrivate: this.#allowPrivate,
        maxBytes: MAX_RESPONSE_BYTES,
        timeoutMs: TIMEOUT_MS,
      });
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  #acceptCosignature(note: string, size: number, body: string): CosignResult {
    const line = body.split('\n').find((text) => text !== '' && this.#hasSigned(`${note}${text}\n`));
    if (line === undefined) return { as: 'silent', why: 'its cosignature does not match the key in the configuration' };
    this.#lastKnownSize = size;
    return { as: 'cosigned', line: `${line}\n` };
  }

  #hasSigned(note: string): boolean {
    try {
      return this.#verifier.hasSigned(note);
    } catch {
      return false;
    }
  }
}
