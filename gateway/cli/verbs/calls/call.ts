import { isJsonObject, type Json, type JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { stringifyExact } from '../../exact-json.ts';
import { type Output, type Piece, paint } from '../../output.ts';
import type { Verb } from '../../verb.ts';
import { undoText } from '../sagas/undo-text.ts';
import { callPath, member, memberObject, stateStyle, textOf } from './call-text.ts';

export const callVerb: Verb = {
  name: 'call',
  summary: 'everything known of one call, with its timeline',
  operands: [{ name: 'txn' }],
  run: async ({ io, out, operands }) => {
    const found = await askGateway(io, callPath(operands[0] ?? ''));
    out.json(found);
    tell(out, found);
    return 0;
  },
};

/** In this order; whatever else the gateway tells comes after it. */
const FIRST = [
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
const APART = ['timeline', 'replayed'];

function tell(out: Output, found: JsonObject): void {
  const names = [...FIRST, ...Object.keys(found).filter((name) => !FIRST.includes(name) && !APART.includes(name))];
  const fields = names.flatMap((name): [string, Piece][] => {
    const text = fieldText(out, name, found[name]);
    return text === '' ? [] : [[name, paint(name === 'state' ? stateStyle(text) : undefined, text)]];
  });
  out.fields(fields);
  const { timeline } = found;
  if (Array.isArray(timeline) && timeline.length > 0) {
    if (out.terminal) out.line('');
    out.fields(timeline.filter(isJsonObject).map(eventText));
  }
  if (out.terminal && found['state'] === 'in_doubt') {
    out.line('');
    out.line('It may or may not have happened. Once you have found out:');
    out.line(`  oncegate resolve ${member(found, 'txn')} \\`);
    out.line('    --verdict applied|not_applied|retry --reason TEXT');
  }
  if (out.terminal && member(memberObject(found, 'undo'), 'state') === 'failed') {
    out.line('');
    out.line('It is not undone. To have that tried again, or with other arguments:');
    out.line(`  oncegate undo ${member(found, 'txn')} \\`);
    out.line('    --reason TEXT [--args JSON]');
  }
}

function fieldText(out: Output, name: string, value: Json | undefined): string {
  if (name === 'problem' && isJsonObject(value)) return `${textOf(value['code'])}: ${textOf(value['detail'])}`;
  if (name === 'undo' && isJsonObject(value)) return undoText(value);
  if (name === 'receipt' && isJsonObject(value)) return textOf(value['leaf']);
  const text = textOf(value);
  const long = out.terminal && text.length > out.width - 16 && typeof value === 'object';
  return long ? stringifyExact(value) : text;
}

function eventText({ at, what, ...details }: JsonObject): [string, Piece] {
  const told = Object.entries(details).filter(([, value]) => value !== null);
  return [textOf(at), [textOf(what), ...told.map(([name, value]) => `${name}=${textOf(value)}`)].join(' ')];
}
