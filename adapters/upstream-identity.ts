import { createHmac } from 'node:crypto';

/** 64 bits: that two accounts of one service look alike by chance is nothing to wait for. */
const DIGEST_LENGTH = 16;

/**
 * Where an upstream is, as it is written down with each request to tell whether it still is there. Its credentials are not
 * written: a digest under the gateway's key stands for them, or two accounts of one service would look like the same place.
 */
export class UpstreamIdentity {
  readonly written: string;
  readonly #acceptedForms: ReadonlySet<string>;

  constructor(exact: string, scrub: (text: string) => string, key: Buffer) {
    const shown = scrub(exact);
    this.written = shown === exact ? exact : `${shown}#${digestIdentity(exact, key)}`;
    // Earlier versions wrote no digest, and took for no credential what is one now: their calls are compared as they were then.
    this.#acceptedForms = new Set([this.written, shown, exact]);
  }

  /** Whether what was written down then, if anything was, means this place. */
  matches(written: string | undefined): boolean {
    return written === undefined || this.#acceptedForms.has(written);
  }
}

function digestIdentity(exact: string, key: Buffer): string {
  return createHmac('sha256', key).update('oncegate.place.1\0').update(exact).digest('hex').slice(0, DIGEST_LENGTH);
}
