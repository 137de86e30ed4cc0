import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import { fieldColumn, listVerb } from '../../list-verb.ts';
import { paint, type Style } from '../../output.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { type Verb, VerbError } from '../../verb.ts';

export const breakersVerb = listVerb({
  name: 'breakers',
  summary: 'list circuit breakers, and who opened them',
  path: '/admin/breakers',
  isPaged: false,
  columns: [
    fieldColumn('upstream', { canTruncate: true }),
    {
      title: 'state',
      cell: (breaker) => {
        const state = textField(breaker, 'state');
        return paint(breakerStateStyle(state), state);
      },
    },
    fieldColumn('by', { canTruncate: true }),
    fieldColumn('reason', { canTruncate: true }),
  ],
  emptyMessage: 'The policies have no upstreams.',
});

export const breakerVerb: Verb = {
  name: 'breaker',
  summary: 'open a circuit breaker until you close it, or close it',
  operands: [{ name: 'upstream' }, { name: 'to', choices: ['open', 'close'] }],
  options: { reason: REASON_OPTION },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const [upstream = '', action] = operands;
    const advice = '"oncegate breakers" lists the upstreams.';
    // Refuse anything but a name, because the name becomes part of a URL path.
    if (!/^[A-Za-z0-9_-]+$/.test(upstream))
      throw new VerbError('not_found', `There is no upstream ${JSON.stringify(upstream)}.\n${advice}`);
    const answer = await requestGateway(io, `/admin/breakers/${upstream}/${action}`, {
      method: 'POST',
      body: { reason: readReason(invocation) },
      advice: ({ code }) => (code === 'not_found' ? advice : undefined),
    });
    out.printJson(answer);
    const state = textField(answer, 'state');
    if (!out.isTerminal) out.printLine(`${upstream}\t${state}`);
    else out.printLine(`${upstream} is `, paint(breakerStateStyle(state), state));
    return 0;
  },
};

function breakerStateStyle(state: string): Style {
  if (state === 'closed') return 'green';
  return state === 'open' ? 'red' : 'yellow';
}
