import { requestGateway } from '../../gateway-client.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import type { Verb } from '../../verb.ts';
import { buildSagaAdvice, buildSagaPath, parseSagaId, printSagaState } from './saga-text.ts';

export const closeVerb: Verb = {
  name: 'close',
  summary: 'close a parked saga, after you handled the rest by hand',
  operands: [{ name: 'saga' }],
  options: { reason: REASON_OPTION },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const id = parseSagaId(operands[0] ?? '');
    const closed = await requestGateway(io, `${buildSagaPath(id)}/close`, {
      method: 'POST',
      body: { reason: readReason(invocation) },
      advice: buildSagaAdvice(id),
    });
    out.printJson(closed);
    printSagaState(out, closed);
    return 0;
  },
};
