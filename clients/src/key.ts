/**
 * The idempotency key of a call, from the framework's call id. Model vendors make ids that are unique everywhere
 * (`call_…`, `toolu_…`); others count from zero in every run (`call_0`, `functions.charge:0`), and there the same id is a
 * different wish the next time. So an id that could be a number is only used together with `run`.
 */
export function callKey(
  callId: string,
  run: { readonly given?: string | undefined; readonly made: string },
): Promise<string> {
  if (run.given !== undefined) return toValidKey(`${run.given}/${callId}`);
  return toValidKey(looksUnique(callId) ? callId : `${run.made}/${callId}`);
}

/** At least 16 letters and digits in a row, of both sorts or after a vendor's mark, as no counter and no name of a tool has them. */
function looksUnique(id: string): boolean {
  const runs = id.replaceAll('-', '').match(/[A-Za-z0-9]{16,}/g) ?? [];
  const isMarked = /^(?:toolu|call|fc)_[A-Za-z0-9]{16,}$/.test(id);
  return (isMarked || runs.some((run) => /\d/.test(run) && /[A-Za-z]/.test(run))) && !/[:_.]\d{1,6}$/.test(id);
}

/** A key is 1 to 255 visible ASCII characters; what is not becomes its own hash. */
async function toValidKey(key: string): Promise<string> {
  if (/^[\x21-\x7e]{1,255}$/.test(key) && !key.includes('"')) return key;
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(key));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
