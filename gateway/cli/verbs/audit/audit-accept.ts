import { askGateway } from '../../ask-gateway.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import type { Verb } from '../../verb.ts';

export const auditAcceptVerb: Verb = {
  name: 'audit accept',
  summary: 'go on with a log that a kept checkpoint contradicts',
  options: { reason: REASON },
  run: async (invocation) => {
    const { io, out } = invocation;
    const answer = await askGateway(io, '/admin/audit/accept', {
      method: 'POST',
      body: { reason: reasonOf(invocation) },
      advice: ({ code }) =>
        code === 'conflict'
          ? 'A witness is run by somebody else: only there can it be told to forget what it saw.'
          : undefined,
    });
    out.json(answer);
    out.line(answer['accepted'] === true ? 'accepted' : 'nothing was in doubt');
    return 0;
  },
};
