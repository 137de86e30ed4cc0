import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import { parseJsonOption } from '../../json-option.ts';
import { paint } from '../../output.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { buildCallPath, callStateStyle, parseTxn } from './call-text.ts';

export const resolveVerb: Verb = {
  name: 'resolve',
  summary: 'say what became of a call in doubt, or have it sent again',
  operands: [{ name: 'txn' }],
  options: {
    verdict: {
      value: 'VERDICT',
      choices: ['applied', 'not_applied', 'retry'],
      required: true,
      help: 'what you found out; retry sends the call again',
    },
    reason: { value: 'TEXT', required: true, help: 'how you know; the audit log keeps it' },
    result: { value: 'JSON', help: 'the result that the agent gets, with --verdict applied' },
    'sender-is-dead': { help: 'you are sure that the process that sent the call has ended' },
  },
  run: async ({ io, out, operands, text, hasFlag }) => {
    const verdict = text('verdict') ?? '';
    const result = text('result');
    if (result !== undefined && verdict !== 'applied') throw new UsageError('--result needs --verdict applied');
    const reason = text('reason')?.trim() ?? '';
    if (reason === '') throw new UsageError('--reason must not be empty');
    const call = await requestGateway(io, `${buildCallPath(parseTxn(operands[0] ?? ''))}/resolve`, {
      method: 'POST',
      body: {
        verdict,
        reason,
        ...(result === undefined ? {} : { result: parseJsonOption('result', result) }),
        ...(hasFlag('sender-is-dead') ? { senderIsDead: true } : {}),
      },
      advice: ({ detail }) =>
        String(detail).includes('senderIsDead') ? 'On the command line, add --sender-is-dead.' : undefined,
    });
    out.printJson(call);
    const state = textField(call, 'state');
    const txn = textField(call, 'txn');
    if (!out.isTerminal) out.printLine(`${txn}\t${state}`);
    else out.printLine(`${txn} is ${verdict === 'retry' ? '' : 'now '}`, paint(callStateStyle(state), state));
    if (out.isTerminal && verdict === 'retry')
      out.printLine('The same request is sent again. "oncegate call <txn>" shows the result.');
    return 0;
  },
};
