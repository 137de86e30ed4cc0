import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { UUID_PATTERN } from '../calls/call-text.ts';
import { runRollback } from './rollback-progress.ts';
import { parseSagaId } from './saga-text.ts';

export const resumeVerb: Verb = {
  name: 'resume',
  summary: 'resume a parked rollback',
  operands: [{ name: 'saga' }],
  options: {
    waive: {
      value: 'TXN',
      many: true,
      help: 'leave this step as it is, and undo the steps it depends on; may be repeated',
    },
    reason: REASON_OPTION,
  },
  run: async (invocation) => {
    const { operands, texts } = invocation;
    const waive = texts('waive').map((txn) => txn.toLowerCase());
    const invalid = waive.find((txn) => !UUID_PATTERN.test(txn));
    if (invalid !== undefined) throw new UsageError(`--waive must be a txn (got ${JSON.stringify(invalid)})`);
    const id = parseSagaId(operands[0] ?? '');
    const body = { reason: readReason(invocation), ...(waive.length === 0 ? {} : { waive }) };
    return runRollback(invocation, id, 'resume', body);
  },
};
