import type { JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { counted } from '../../count-words.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';

const SCOPES = {
  agent: { value: 'AGENT', help: 'everything this agent ever sent and got' },
  saga: { value: 'SAGA', help: 'the steps of this saga' },
  txn: { value: 'TXN', help: 'one call' },
  subject: { value: 'TEXT', help: 'every call with this text as a value anywhere in its arguments' },
} as const;

export const eraseVerb: Verb = {
  name: 'erase',
  summary: 'erase arguments and answers; the log says so, and why',
  options: { ...SCOPES, reason: REASON },
  run: async (invocation) => {
    const { io, out, text } = invocation;
    const named = Object.keys(SCOPES).filter((name) => text(name) !== undefined);
    const [scope] = named;
    if (scope === undefined || named.length > 1)
      throw new UsageError(
        `exactly one of ${Object.keys(SCOPES)
          .map((name) => `--${name}`)
          .join(', ')} is needed`,
      );
    const reason = reasonOf(invocation);
    const total = { erased: 0, open: [] as string[], openRuns: [] as string[], unreadable: [] as string[] };
    for (let cursor: unknown = undefined; cursor !== null; ) {
      const asked = { [scope]: text(scope) ?? '', reason, ...(typeof cursor === 'string' ? { cursor } : {}) };
      const answer: JsonObject = await askGateway(io, '/admin/erase', { method: 'POST', body: asked });
      total.erased += Number(answer['erased']);
      total.open.push(...((answer['open'] ?? []) as string[]));
      total.openRuns = (answer['openRuns'] ?? []) as string[];
      total.unreadable.push(...((answer['unreadable'] ?? []) as string[]));
      cursor = typeof answer['cursor'] === 'string' ? answer['cursor'] : null;
    }
    out.json(total);
    out.line(`erased\t${total.erased}`);
    for (const txn of total.open) out.line(`open\t${txn}`);
    for (const run of total.openRuns) out.line(`open run\t${run}`);
    for (const txn of total.unreadable) out.line(`unreadable\t${txn}`);
    if (total.open.length > 0)
      out.note(
        `${counted(total.open.length, 'call')} could not be erased: they are open, may still be undone, or their saga is not over.\n` +
          'Erase again when they have come to an end.',
      );
    if (total.openRuns.length > 0)
      out.note(
        `${counted(total.openRuns.length, 'run')} still hold what was kept in them. Finish them, and erase again.`,
      );
    if (total.unreadable.length > 0)
      out.note(
        'The sealed arguments of some calls do not open with the key of this gateway: nobody knows what is in them.',
      );
    return total.open.length + total.openRuns.length + total.unreadable.length > 0 ? 1 : 0;
  },
};
