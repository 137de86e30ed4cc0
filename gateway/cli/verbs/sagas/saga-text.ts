import type { JsonObject } from '../../../domain/json.ts';
import { formatJson, listField, objectField, textField } from '../../json-fields.ts';
import { type Output, paint, type Style, type StyledText } from '../../output.ts';
import { VerbError } from '../../verb.ts';
import { callStateStyle, UUID_PATTERN } from '../calls/call-text.ts';
import { formatUndoCall, undoStateStyle } from './undo-text.ts';

export function sagaStateStyle(state: string): Style | undefined {
  if (state === 'committed' || state === 'rolled_back') return 'green';
  if (state === 'rolling_back') return 'yellow';
  return state === 'parked' ? 'red' : undefined;
}

const LIST_ADVICE = '"oncegate sagas" lists the sagas.';

/** The id in lower case. Refuses everything else, because the id becomes part of a URL path. */
export function parseSagaId(text: string): string {
  if (UUID_PATTERN.test(text)) return text.toLowerCase();
  throw new VerbError('not_found', `There is no saga ${JSON.stringify(text)}: a saga id is a UUID.\n${LIST_ADVICE}`);
}

export function buildSagaPath(id: string): string {
  return `/admin/sagas/${id}`;
}

/** The next step after the gateway refused a request about this saga. */
export function buildSagaAdvice(id: string): (problem: JsonObject) => string | undefined {
  return ({ code, detail }) => {
    if (code === 'not_found' && String(detail).startsWith('There is no saga')) return LIST_ADVICE;
    return code === 'conflict' || code === 'saga_closed' || code === 'not_found'
      ? `"oncegate saga ${id}" shows its state.`
      : undefined;
  };
}

/** Prints a row elsewhere, a sentence on a terminal. */
export function printSagaState(out: Output, saga: JsonObject): void {
  const [id, state, reason] = [textField(saga, 'saga'), textField(saga, 'state'), textField(saga, 'reason')];
  if (!out.isTerminal) {
    out.printRow([id, state, reason].filter(Boolean));
    return;
  }
  out.printLine(`${id} is `, paint(sagaStateStyle(state), state));
  if (state === 'parked') out.printHanging(['  '], paint('red', reason));
}

/** Prints the commands that continue or close a parked saga. */
export function printNextCommands(out: Output, saga: JsonObject): void {
  if (!out.isTerminal || saga['state'] !== 'parked') return;
  const id = textField(saga, 'saga');
  const steps = listField(saga, 'steps');
  out.printLine('');
  out.printLine('To continue, run one of:');
  for (const step of steps.filter(({ state }) => state === 'in_doubt')) {
    out.printLine(`  oncegate resolve ${textField(step, 'txn')} \\`);
    out.printLine('    --verdict … --reason TEXT  say whether this step took effect');
  }
  // The saga was parked because it expired, before any undo started.
  const isUntouched = steps.every((step) => textField(objectField(step, 'undo'), 'state') === 'none');
  out.printLine(`  oncegate ${isUntouched ? 'rollback' : 'resume'} ${id} \\`);
  out.printLine(`    --reason TEXT              ${isUntouched ? 'undo its steps' : 'try the failed undos again'}`);
  if (!isUntouched) out.printLine('    --waive TXN --reason TEXT  continue without waiting for that step');
  out.printLine(`  oncegate close ${id} \\`);
  out.printLine('    --reason TEXT              you handled the rest by hand');
}

export function printSteps(out: Output, saga: JsonObject): void {
  const steps = listField(saga, 'steps');
  const savepoints = listField(saga, 'savepoints');
  const numbers = new Map(steps.map((step, index) => [textField(step, 'txn'), index + 1]));
  const tellSavepoints = (after: number): void => {
    for (const savepoint of savepoints.filter(({ after: position }) => position === after))
      if (out.isTerminal) out.printHanging([paint('dim', '    ── savepoint ')], textField(savepoint, 'name'));
      else out.printRow(['savepoint', String(after), textField(savepoint, 'name')]);
  };
  tellSavepoints(0);
  for (const [index, step] of steps.entries()) {
    if (out.isTerminal) printStep(out, step, index + 1, numbers);
    else out.printRow(buildStepCells(step, index + 1));
    tellSavepoints(index + 1);
  }
}

function buildStepCells(step: JsonObject, number: number): string[] {
  const undo = objectField(step, 'undo');
  const undoFields = ['state', 'tool', 'txn', 'reason'].map((name) => textField(undo, name));
  return [
    'step',
    String(number),
    textField(step, 'txn'),
    textField(step, 'tool'),
    textField(step, 'state'),
    ...undoFields,
  ];
}

function printStep(out: Output, step: JsonObject, number: number, numbers: ReadonlyMap<string, number>): void {
  const state = textField(step, 'state');
  out.printHanging([`${String(number).padStart(3)} `], paint('bold', textField(step, 'tool')));
  const hang = (text: StyledText): void => out.printHanging(['    '], text);
  out.printLine(`    ${textField(step, 'txn')} `, paint(callStateStyle(state), state));
  const dependencies = formatDependencies(step, number, numbers);
  if (dependencies !== '') hang(paint('dim', dependencies));
  const undo = objectField(step, 'undo');
  hang(paint(undoStateStyle(textField(undo, 'state')), formatUndoLine(undo)));
  if (textField(undo, 'txn') !== '') out.printHanging(['      '], `as ${textField(undo, 'txn')}`);
  if (textField(undo, 'reason') !== '') out.printHanging(['      '], textField(undo, 'reason'));
  if (step['waived'] === true) hang(paint('yellow', 'waived: the rollback does not wait for it'));
}

/** By default a step depends on all earlier steps; only other dependencies are printed. */
function formatDependencies({ dependsOn }: JsonObject, number: number, numbers: ReadonlyMap<string, number>): string {
  const txns = Array.isArray(dependsOn) ? dependsOn.map(formatJson) : [];
  if (txns.length === number - 1) return '';
  if (txns.length === 0) return 'depends on no other step';
  return `depends on step ${txns.map((txn) => numbers.get(txn) ?? txn).join(', ')}`;
}

function formatUndoLine(undo: JsonObject): string {
  const [state, kind, by] = [textField(undo, 'state'), textField(undo, 'kind'), formatUndoCall(undo)];
  const how = by === '' ? (kind === '' ? 'no undo' : kind) : `by ${by}`;
  return state === 'none' ? `undo: ${how}` : `undo ${state}${by === '' ? '' : `: ${how}`}`;
}
