import { requestGateway } from '../../gateway-client.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import type { Verb } from '../../verb.ts';

export const auditAcceptVerb: Verb = {
  name: 'audit accept',
  summary: 'accept a log that contradicts a checkpoint, after a restore',
  options: { reason: REASON_OPTION },
  run: async (invocation) => {
    const { io, out } = invocation;
    const answer = await requestGateway(io, '/admin/audit/accept', {
      method: 'POST',
      body: { reason: readReason(invocation) },
      advice: ({ code }) => (code === 'conflict' ? 'A witness refuses. Only its operator can reset it.' : undefined),
    });
    out.printJson(answer);
    out.printLine(answer['accepted'] === true ? 'accepted' : 'nothing was in doubt');
    return 0;
  },
};
