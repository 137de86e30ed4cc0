import { isJsonObject, type Json, type JsonObject } from '../../../domain/json.ts';
import { stringifyExact } from '../../exact-json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { formatJson, objectField, textField } from '../../json-fields.ts';
import { type Output, paint, type StyledText } from '../../output.ts';
import type { Verb } from '../../verb.ts';
import { formatUndo } from '../sagas/undo-text.ts';
import { buildCallPath, callStateStyle, parseTxn } from './call-text.ts';

export const callVerb: Verb = {
  name: 'call',
  summary: 'show one call with its timeline',
  operands: [{ name: 'txn' }],
  run: async ({ io, out, operands }) => {
    const found = await requestGateway(io, buildCallPath(parseTxn(operands[0] ?? '')));
    out.printJson(found);
    printCall(out, found);
    return 0;
  },
};

/** Printed first, in this order. All other fields follow. */
const LEADING_FIELDS = [
  'txn',
  'state',
  'agent',
  'tool',
  'kind',
  'key',
  'args',
  'result',
  'problem',
  'outcome',
  'evidence',
  'saga',
  'undo',
];
/** Not printed as fields: the timeline follows them, and `replayed` says nothing about the call. */
const SEPARATE_FIELDS = ['timeline', 'replayed'];

function printCall(out: Output, found: JsonObject): void {
  const names = [
    ...LEADING_FIELDS,
    ...Object.keys(found).filter((name) => !LEADING_FIELDS.includes(name) && !SEPARATE_FIELDS.includes(name)),
  ];
  const fields = names.flatMap((name): [string, StyledText][] => {
    const text = formatField(out, name, found[name]);
    return text === '' ? [] : [[name, paint(name === 'state' ? callStateStyle(text) : undefined, text)]];
  });
  out.printFields(fields);
  const { timeline } = found;
  if (Array.isArray(timeline) && timeline.length > 0) {
    if (out.isTerminal) out.printLine('');
    out.printFields(timeline.filter(isJsonObject).map(formatEvent));
  }
  if (out.isTerminal && found['state'] === 'in_doubt') {
    out.printLine('');
    out.printLine('The call may or may not have had its effect. When you know, say so:');
    out.printLine(`  oncegate resolve ${textField(found, 'txn')} \\`);
    out.printLine('    --verdict applied|not_applied|retry --reason TEXT');
  }
  if (out.isTerminal && textField(objectField(found, 'undo'), 'state') === 'failed') {
    out.printLine('');
    out.printLine('The call is not undone. To try again, with the same or other arguments:');
    out.printLine(`  oncegate undo ${textField(found, 'txn')} \\`);
    out.printLine('    --reason TEXT [--args JSON]');
  }
}

function formatField(out: Output, name: string, value: Json | undefined): string {
  if (name === 'problem' && isJsonObject(value)) return `${formatJson(value['code'])}: ${formatJson(value['detail'])}`;
  if (name === 'undo' && isJsonObject(value)) return formatUndo(value);
  if (name === 'receipt' && isJsonObject(value)) return formatJson(value['leaf']);
  const text = formatJson(value);
  // A long value gets several indented lines.
  const isLong = out.isTerminal && text.length > out.width - 16 && typeof value === 'object';
  return isLong ? stringifyExact(value) : text;
}

function formatEvent({ at, what, ...details }: JsonObject): [string, StyledText] {
  const shown = Object.entries(details).filter(([, value]) => value !== null);
  return [
    formatJson(at),
    [formatJson(what), ...shown.map(([name, value]) => `${name}=${formatJson(value)}`)].join(' '),
  ];
}
