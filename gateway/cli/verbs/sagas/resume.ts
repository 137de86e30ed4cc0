import { REASON, reasonOf } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { UUID } from '../calls/call-text.ts';
import { followRollback } from './rollback-progress.ts';
import { sagaId } from './saga-text.ts';

export const resumeVerb: Verb = {
  name: 'resume',
  summary: 'take a parked rollback up again',
  operands: [{ name: 'saga' }],
  options: {
    waive: { value: 'TXN', many: true, help: 'a step that is no longer waited for; may be repeated' },
    reason: REASON,
  },
  run: async (invocation) => {
    const { operands, texts } = invocation;
    const waive = texts('waive').map((txn) => txn.toLowerCase());
    const odd = waive.find((txn) => !UUID.test(txn));
    if (odd !== undefined) throw new UsageError(`--waive ${JSON.stringify(odd)} is no txn`);
    const id = sagaId(operands[0] ?? '');
    const body = { reason: reasonOf(invocation), ...(waive.length === 0 ? {} : { waive }) };
    return followRollback(invocation, id, 'resume', body);
  },
};
