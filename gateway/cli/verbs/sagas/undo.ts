import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { jsonOption } from '../../json-option.ts';
import { type Output, paint } from '../../output.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { watch } from '../../watch.ts';
import { callPath, member, memberObject } from '../calls/call-text.ts';
import { undoCall, undoStyle } from './undo-text.ts';

export const undoVerb: Verb = {
  name: 'undo',
  summary: 'undo one call, as its contract says',
  operands: [{ name: 'txn' }],
  options: {
    args: { value: 'JSON', help: 'what its undo is called with, where the gateway cannot know it' },
    reason: REASON,
  },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const path = callPath(operands[0] ?? '');
    const args = argsOf(invocation.text('args'));
    const body = { reason: reasonOf(invocation), ...(args === undefined ? {} : { args }) };
    const txn = path.slice('/admin/calls/'.length);
    const ended = await watch(invocation, {
      begin: () =>
        askGateway(io, `${path}/undo`, {
          method: 'POST',
          body,
          advice: ({ detail }) =>
            String(detail).includes('"args"') ? 'On the command line that is --args JSON.' : undefined,
        }),
      path,
      isAtRest: (call) => !['due', 'running'].includes(undoState(call)),
      goesOn: `Nobody watches any more, but the undo goes on by itself.\n"oncegate call ${txn}" shows how it stands.`,
    });
    out.json(ended);
    tell(out, ended);
    return undoState(ended) === 'done' ? 0 : 1;
  },
};

function argsOf(text: string | undefined): JsonObject | undefined {
  if (text === undefined) return undefined;
  const args = jsonOption('args', text);
  if (!isJsonObject(args)) throw new UsageError('--args must be a JSON object');
  return args;
}

function undoState(call: JsonObject): string {
  return member(memberObject(call, 'undo'), 'state');
}

function tell(out: Output, call: JsonObject): void {
  const found = memberObject(call, 'undo');
  const [txn, state, by, reason] = [member(call, 'txn'), undoState(call), undoCall(found), member(found, 'reason')];
  if (!out.terminal) {
    out.row([txn, state, member(found, 'tool'), member(found, 'txn'), reason]);
    return;
  }
  out.line(`${txn}: undo `, paint(undoStyle(state), state));
  out.hang(['  '], `by ${by}`);
  if (member(found, 'txn') !== '') out.hang(['  '], `as ${member(found, 'txn')}`);
  if (reason !== '') out.hang(['  '], paint(undoStyle(state), reason));
}
