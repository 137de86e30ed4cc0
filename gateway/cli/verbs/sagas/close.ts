import { askGateway } from '../../ask-gateway.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import type { Verb } from '../../verb.ts';
import { sagaAdvice, sagaId, sagaPath, tellState } from './saga-text.ts';

export const closeVerb: Verb = {
  name: 'close',
  summary: 'a parked saga: you have seen to the rest by hand',
  operands: [{ name: 'saga' }],
  options: { reason: REASON },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const id = sagaId(operands[0] ?? '');
    const closed = await askGateway(io, `${sagaPath(id)}/close`, {
      method: 'POST',
      body: { reason: reasonOf(invocation) },
      advice: sagaAdvice(id),
    });
    out.json(closed);
    tellState(out, closed);
    return 0;
  },
};
