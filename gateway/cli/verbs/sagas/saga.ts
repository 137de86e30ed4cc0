import type { JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { type Output, type Piece, paint } from '../../output.ts';
import type { Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';
import { sagaAdvice, sagaId, sagaPath, sagaStyle, tellSteps, tellWayOut } from './saga-text.ts';

export const sagaVerb: Verb = {
  name: 'saga',
  summary: 'one saga: its steps, and how each is undone',
  operands: [{ name: 'saga' }],
  run: async ({ io, out, operands }) => {
    const id = sagaId(operands[0] ?? '');
    const found = await askGateway(io, sagaPath(id), { advice: sagaAdvice(id) });
    out.json(found);
    tell(out, found);
    return 0;
  },
};

/** In this order; whatever else the gateway tells comes after it. */
const FIRST = ['saga', 'name', 'state', 'reason', 'by', 'agent', 'createdAt', 'expiresAt', 'onExpire', 'endedAt'];
const APART = ['steps', 'savepoints'];

function tell(out: Output, found: JsonObject): void {
  // What happens when its time is over matters only if it ends.
  const moot = member(found, 'expiresAt') === '' ? ['onExpire'] : [];
  const more = Object.keys(found).filter((name) => !FIRST.includes(name) && !APART.includes(name));
  const fields = [...FIRST, ...more].flatMap((name): [string, Piece][] => {
    const text = member(found, name);
    if (text === '' || moot.includes(name)) return [];
    return [[name, paint(name === 'state' ? sagaStyle(text) : undefined, text)]];
  });
  out.fields(fields);
  if (out.terminal) out.line('');
  tellSteps(out, found);
  if (out.terminal && Array.isArray(found['steps']) && found['steps'].length === 0) out.line('no steps yet');
  tellWayOut(out, found);
}
