import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { objectField, textField } from '../../json-fields.ts';
import { parseJsonOption } from '../../json-option.ts';
import { type Output, paint } from '../../output.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { UsageError, type Verb } from '../../verb.ts';
import { startAndWatch } from '../../watch-operation.ts';
import { buildCallPath, parseTxn } from '../calls/call-text.ts';
import { formatUndoCall, undoStateStyle } from './undo-text.ts';

export const undoVerb: Verb = {
  name: 'undo',
  summary: 'undo one call, as its contract says',
  operands: [{ name: 'txn' }],
  options: {
    args: { value: 'JSON', help: 'arguments for the undo, if the gateway cannot know them' },
    reason: REASON_OPTION,
  },
  run: async (invocation) => {
    const { io, out, operands } = invocation;
    const txn = parseTxn(operands[0] ?? '');
    const path = buildCallPath(txn);
    const args = parseArgsOption(invocation.text('args'));
    const body = { reason: readReason(invocation), ...(args === undefined ? {} : { args }) };
    const ended = await startAndWatch(invocation, {
      start: () =>
        requestGateway(io, `${path}/undo`, {
          method: 'POST',
          body,
          advice: ({ detail }) =>
            String(detail).includes('"args"') ? 'On the command line, add --args JSON.' : undefined,
        }),
      path,
      isFinished: (call) => !['due', 'running'].includes(readUndoState(call)),
      interruptedMessage: `You stopped watching. The undo continues in the gateway.\n"oncegate call ${txn}" shows its state.`,
    });
    out.printJson(ended);
    printUndo(out, ended);
    return readUndoState(ended) === 'done' ? 0 : 1;
  },
};

function parseArgsOption(text: string | undefined): JsonObject | undefined {
  if (text === undefined) return undefined;
  const args = parseJsonOption('args', text);
  if (!isJsonObject(args)) throw new UsageError('--args must be a JSON object');
  return args;
}

function readUndoState(call: JsonObject): string {
  return textField(objectField(call, 'undo'), 'state');
}

function printUndo(out: Output, call: JsonObject): void {
  const found = objectField(call, 'undo');
  const [txn, state, by, reason] = [
    textField(call, 'txn'),
    readUndoState(call),
    formatUndoCall(found),
    textField(found, 'reason'),
  ];
  if (!out.isTerminal) {
    out.printRow([txn, state, textField(found, 'tool'), textField(found, 'txn'), reason]);
    return;
  }
  out.printLine(`${txn}: undo `, paint(undoStateStyle(state), state));
  out.printHanging(['  '], `by ${by}`);
  if (textField(found, 'txn') !== '') out.printHanging(['  '], `as ${textField(found, 'txn')}`);
  if (reason !== '') out.printHanging(['  '], paint(undoStateStyle(state), reason));
}
