import type { Style } from '../../output.ts';
import { VerbError } from '../../verb.ts';

export function callStateStyle(state: string): Style | undefined {
  if (state === 'succeeded') return 'green';
  if (state === 'in_doubt' || state === 'held') return 'yellow';
  return state === 'failed' || state === 'rejected' || state === 'expired' ? 'red' : undefined;
}

export const UUID_PATTERN = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Returns the txn in lower case. Refuses text that is not a UUID, because the txn becomes part of a URL path. */
export function parseTxn(text: string): string {
  if (UUID_PATTERN.test(text)) return text.toLowerCase();
  const message = `There is no call ${JSON.stringify(text)}: a txn is a UUID. "oncegate calls" lists the calls.`;
  throw new VerbError('not_found', message);
}

export function buildCallPath(txn: string): string {
  return `/admin/calls/${txn}`;
}
