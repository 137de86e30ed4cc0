import { type LogCheckpoint, NoteVerifier } from '../gateway/domain/audit/signed-note.ts';
import { sendOutboundRequest } from './http/outbound-request.ts';

/** A witness as its operator is trusted to run it: where it is, and the public key of its cosignatures. */
export interface WitnessOptions {
  readonly url: string;
  readonly key: string;
  readonly allowPrivate: boolean;
}

/** What came of showing it a checkpoint. */
export type CosignResult =
  | { readonly as: 'cosigned'; readonly line: string }
  /** It has cosigned a larger log than the one it is shown. */
  | { readonly as: 'ahead'; readonly size: number }
  | { readonly as: 'contradicted'; readonly why: string }
  /** It could not be asked, or understood: it says nothing about the log. */
  | { readonly as: 'silent'; readonly why: string };

const TIMEOUT_MS = 2_000;
const MAX_RESPONSE_BYTES = 65_536;
/** Another replica may show it something between its answer and our next question; not for ever. */
const MAX_TRIES = 4;

/** Somebody else's memory of the log (C2SP tlog-witness): it cosigns only what extends all it has ever cosigned. */
export class WitnessClient {
  readonly url: string;
  readonly #verifier: NoteVerifier;
  readonly #allowPrivate: boolean;
  /** What it had cosigned when it was last heard of. */
  #lastKnownSize = 0;

  constructor({ url, key, allowPrivate }: WitnessOptions) {
    this.url = url;
    this.#verifier = new NoteVerifier(key);
    this.#allowPrivate = allowPrivate;
  }

  /** `proofFrom` proves that the log of that size is how this one began. */
  async requestCosignature(
    note: string,
    { size }: LogCheckpoint,
    proofFrom: (size: number) => Promise<Buffer[]>,
  ): Promise<CosignResult> {
    for (let left = MAX_TRIES; left > 0; left--) {
      const old = Math.min(this.#lastKnownSize, size);
      const answer = await this.#postCheckpoint(old, await proofFrom(old), note);
      if (typeof answer === 'string') return { as: 'silent', why: answer };
      const { status, body } = answer;
      if (status === 200) return this.#acceptCosignature(note, size, body);
      if (status === 422)
        return { as: 'contradicted', why: `it cosigned a log of ${old} that this one does not extend` };
      if (status !== 409 || !/^\d{1,15}\n?$/.test(body)) return { as: 'silent', why: `it answered ${status}` };
      this.#lastKnownSize = Number(body);
      if (this.#lastKnownSize > size) return { as: 'ahead', size: this.#lastKnownSize };
      if (this.#lastKnownSize === old)
        return { as: 'contradicted', why: `it cosigned another log of the same size, ${old}` };
    }
    return { as: 'silent', why: 'it changes its mind all the time' };
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
        mostBytes: MAX_RESPONSE_BYTES,
        timeoutMs: TIMEOUT_MS,
      });
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  #acceptCosignature(note: string, size: number, body: string): CosignResult {
    const line = body.split('\n').find((text) => text !== '' && this.#hasSigned(`${note}${text}\n`));
    if (line === undefined) return { as: 'silent', why: 'its cosignature is not of the key in the configuration' };
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
