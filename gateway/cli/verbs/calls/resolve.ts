import { askGateway } from '../../ask-gateway.ts';
import { jsonOption } from '../../json-option.ts';
import { paint } from '../../output.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { callPath, member, stateStyle } from './call-text.ts';

export const resolveVerb: Verb = {
  name: 'resolve',
  summary: 'answer a doubt: it happened, it did not, or send it again',
  operands: [{ name: 'txn' }],
  options: {
    verdict: {
      value: 'VERDICT',
      choices: ['applied', 'not_applied', 'retry'],
      required: true,
      help: 'what you found out, or to send it once more',
    },
    reason: { value: 'TEXT', required: true, help: 'how you know; it is kept with the call' },
    result: { value: 'JSON', help: 'what the agent gets as the result of an applied call' },
    'sender-is-dead': { help: 'you vouch that the process which sent it can send no more' },
  },
  run: async ({ io, out, operands, text, flag }) => {
    const verdict = text('verdict') ?? '';
    const result = text('result');
    if (result !== undefined && verdict !== 'applied')
      throw new UsageError('--result goes with --verdict applied only');
    const reason = text('reason')?.trim() ?? '';
    if (reason === '') throw new UsageError('--reason is empty');
    const call = await askGateway(io, `${callPath(operands[0] ?? '')}/resolve`, {
      method: 'POST',
      body: {
        verdict,
        reason,
        ...(result === undefined ? {} : { result: jsonOption('result', result) }),
        ...(flag('sender-is-dead') ? { senderIsDead: true } : {}),
      },
      advice: ({ detail }) =>
        String(detail).includes('senderIsDead') ? 'On the command line that is --sender-is-dead.' : undefined,
    });
    out.json(call);
    const state = member(call, 'state');
    const txn = member(call, 'txn');
    if (!out.terminal) out.line(`${txn}\t${state}`);
    else out.line(`${txn} is ${verdict === 'retry' ? '' : 'now '}`, paint(stateStyle(state), state));
    if (out.terminal && verdict === 'retry')
      out.line('The same request is sent once more; "oncegate call <txn>" shows what comes of it.');
    return 0;
  },
};
