import type { JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { type Column, type Output, paint, type Style } from '../../output.ts';
import { readList } from '../../pages.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { NotGood, type Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

export const breakersVerb: Verb = {
  name: 'breakers',
  summary: 'which upstreams are left alone, and by whom',
  run: async ({ io, out }) => {
    const { items } = await readList(io, '/admin/breakers', {}, Number.POSITIVE_INFINITY);
    out.json({ items, cursor: null });
    tell(out, items);
    if (out.terminal && items.length === 0) out.line('there are no upstreams');
    return 0;
  },
};

export const breakerVerb: Verb = {
  name: 'breaker',
  summary: 'open it by hand, until it is closed by hand',
  operands: [{ name: 'upstream' }, { name: 'to', choices: ['open', 'close'] }],
  options: { reason: REASON },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const [upstream = '', to] = operands;
    const advice = '"oncegate breakers" lists the upstreams that there are.';
    // Nothing else than a name may become part of a path.
    if (!/^[A-Za-z0-9_-]+$/.test(upstream))
      throw new NotGood('not_found', `There is no upstream ${JSON.stringify(upstream)}.\n${advice}`);
    const answer = await askGateway(io, `/admin/breakers/${upstream}/${to}`, {
      method: 'POST',
      body: { reason: reasonOf(invocation) },
      advice: ({ code }) => (code === 'not_found' ? advice : undefined),
    });
    out.json(answer);
    const state = member(answer, 'state');
    if (!out.terminal) out.line(`${upstream}\t${state}`);
    else out.line(`${upstream} is `, paint(styleOf(state), state));
    return 0;
  },
};

const COLUMNS: readonly Column[] = [
  { title: 'upstream', cut: true },
  { title: 'state' },
  { title: 'by', cut: true },
  { title: 'reason', cut: true },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  out.table(
    COLUMNS,
    items.map((item) => {
      const state = member(item, 'state');
      return [member(item, 'upstream'), paint(styleOf(state), state), member(item, 'by'), member(item, 'reason')];
    }),
  );
}

function styleOf(state: string): Style {
  if (state === 'closed') return 'green';
  return state === 'open' ? 'red' : 'yellow';
}
