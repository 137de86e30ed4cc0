import type { JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { formatCount } from '../../quantities.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';

const SCOPE_OPTIONS = {
  agent: { value: 'AGENT', help: 'all calls of this agent' },
  saga: { value: 'SAGA', help: 'the steps of this saga' },
  txn: { value: 'TXN', help: 'one call' },
  subject: { value: 'TEXT', help: 'every call that has this text as a value in its arguments' },
} as const;

export const eraseVerb: Verb = {
  name: 'erase',
  summary: 'erase arguments and results; the audit log keeps the reason',
  options: { ...SCOPE_OPTIONS, reason: REASON_OPTION },
  run: async (invocation) => {
    const { io, out, text } = invocation;
    const given = Object.keys(SCOPE_OPTIONS).filter((name) => text(name) !== undefined);
    const [scope] = given;
    if (scope === undefined || given.length > 1)
      throw new UsageError(
        `give exactly one of ${Object.keys(SCOPE_OPTIONS)
          .map((name) => `--${name}`)
          .join(', ')}`,
      );
    const reason = readReason(invocation);
    const total = { erased: 0, open: [] as string[], openRuns: [] as string[], unreadable: [] as string[] };
    for (let cursor: unknown = undefined; cursor !== null; ) {
      const body = { [scope]: text(scope) ?? '', reason, ...(typeof cursor === 'string' ? { cursor } : {}) };
      const answer: JsonObject = await requestGateway(io, '/admin/erase', { method: 'POST', body });
      total.erased += Number(answer['erased']);
      total.open.push(...((answer['open'] ?? []) as string[]));
      total.openRuns = (answer['openRuns'] ?? []) as string[];
      total.unreadable.push(...((answer['unreadable'] ?? []) as string[]));
      cursor = typeof answer['cursor'] === 'string' ? answer['cursor'] : null;
    }
    out.printJson(total);
    out.printLine(`erased\t${total.erased}`);
    for (const txn of total.open) out.printLine(`open\t${txn}`);
    for (const run of total.openRuns) out.printLine(`open run\t${run}`);
    for (const txn of total.unreadable) out.printLine(`unreadable\t${txn}`);
    if (total.open.length > 0)
      out.printNote(
        `Not erased: ${formatCount(total.open.length, 'call')} that are open, may still be undone, or belong to an open saga.\n` +
          'Erase again when they have ended.',
      );
    if (total.openRuns.length > 0)
      out.printNote(
        `Not erased: the checkpoints of ${formatCount(total.openRuns.length, 'open run')}. Finish the runs, and erase again.`,
      );
    if (total.unreadable.length > 0)
      out.printNote(
        'Some calls have encrypted arguments that the key of this gateway cannot decrypt. They were not searched.',
      );
    return total.open.length + total.openRuns.length + total.unreadable.length > 0 ? 1 : 0;
  },
};
