/**
 * Builds the idempotency key of a call from the framework's call id. Some model vendors make unique ids (`call_…`,
 * `toolu_…`). Others count from zero in every run (`call_0`, `functions.charge:0`), so the same id is another call in the
 * next run. Such an id is used only together with the run.
 */
export function callKey(
  callId: string,
  run: { readonly given?: string | undefined; readonly generated: string },
): Promise<string> {
  if (run.given !== undefined) return toValidKey(`${run.given}/${callId}`);
  return toValidKey(looksUnique(callId) ? callId : `${run.generated}/${callId}`);
}

/** True for 16 or more letters and digits in a row, mixed or after a vendor's prefix. No counter or tool name has them. */
function looksUnique(id: string): boolean {
  const runs = id.replaceAll('-', '').match(/[A-Za-z0-9]{16,}/g) ?? [];
  const hasVendorPrefix = /^(?:toolu|call|fc)_[A-Za-z0-9]{16,}$/.test(id);
  return (hasVendorPrefix || runs.some((run) => /\d/.test(run) && /[A-Za-z]/.test(run))) && !/[:_.]\d{1,6}$/.test(id);
}

/** A key is 1 to 255 visible ASCII characters; anything else is replaced by its hash. */
async function toValidKey(key: string): Promise<string> {
  if (/^[\x21-\x7e]{1,255}$/.test(key) && !key.includes('"')) return key;
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(key));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
