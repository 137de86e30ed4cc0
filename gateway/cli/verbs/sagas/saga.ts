import type { JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import { type Output, paint, type StyledText } from '../../output.ts';
import type { Verb } from '../../verb.ts';
import {
  buildSagaAdvice,
  buildSagaPath,
  parseSagaId,
  printNextCommands,
  printSteps,
  sagaStateStyle,
} from './saga-text.ts';

export const sagaVerb: Verb = {
  name: 'saga',
  summary: 'show one saga, its steps, and how each is undone',
  operands: [{ name: 'saga' }],
  run: async ({ io, out, operands }) => {
    const id = parseSagaId(operands[0] ?? '');
    const found = await requestGateway(io, buildSagaPath(id), { advice: buildSagaAdvice(id) });
    out.printJson(found);
    printSaga(out, found);
    return 0;
  },
};

/** Printed first, in this order. All other fields follow. */
const LEADING_FIELDS = [
  'saga',
  'name',
  'state',
  'reason',
  'by',
  'agent',
  'createdAt',
  'expiresAt',
  'onExpire',
  'endedAt',
];
const SEPARATE_FIELDS = ['steps', 'savepoints'];

function printSaga(out: Output, found: JsonObject): void {
  // onExpire means nothing for a saga that does not expire.
  const hidden = textField(found, 'expiresAt') === '' ? ['onExpire'] : [];
  const others = Object.keys(found).filter((name) => !LEADING_FIELDS.includes(name) && !SEPARATE_FIELDS.includes(name));
  const fields = [...LEADING_FIELDS, ...others].flatMap((name): [string, StyledText][] => {
    const text = textField(found, name);
    if (text === '' || hidden.includes(name)) return [];
    return [[name, paint(name === 'state' ? sagaStateStyle(text) : undefined, text)]];
  });
  out.printFields(fields);
  if (out.isTerminal) out.printLine('');
  printSteps(out, found);
  if (out.isTerminal && Array.isArray(found['steps']) && found['steps'].length === 0) out.printLine('No steps yet.');
  printNextCommands(out, found);
}
