import { createHmac } from 'node:crypto';

/** 64 bits. Two accounts of one service practically never have the same digest. */
const DIGEST_HEX_DIGITS = 16;

/**
 * Identifies the URL of an upstream. Each request stores the identity, so that a re-send can check that the URL did not change.
 * Credentials are not stored. A keyed digest stands for them, because two accounts of one service differ only in credentials.
 */
export class UpstreamIdentity {
  /** The form that is stored with each request. */
  readonly written: string;
  readonly #acceptedForms: ReadonlySet<string>;

  constructor(exact: string, scrub: (text: string) => string, key: Buffer) {
    const scrubbed = scrub(exact);
    this.written = scrubbed === exact ? exact : `${scrubbed}#${digestIdentity(exact, key)}`;
    // Earlier versions stored no digest, or stored a credential that they did not recognise. Their stored forms still match.
    this.#acceptedForms = new Set([this.written, scrubbed, exact]);
  }

  /** Whether a stored identity means this upstream. A request without a stored identity always matches. */
  matches(written: string | undefined): boolean {
    return written === undefined || this.#acceptedForms.has(written);
  }
}

function digestIdentity(exact: string, key: Buffer): string {
  return createHmac('sha256', key).update('oncegate.place.1\0').update(exact).digest('hex').slice(0, DIGEST_HEX_DIGITS);
}
