import type { JsonObject } from '../../../domain/json.ts';
import { type Output, type Piece, paint, type Style } from '../../output.ts';
import { NotGood } from '../../verb.ts';
import { member, memberList, memberObject, stateStyle, textOf, UUID } from '../calls/call-text.ts';
import { undoCall, undoStyle } from './undo-text.ts';

export function sagaStyle(state: string): Style | undefined {
  if (state === 'committed' || state === 'rolled_back') return 'green';
  if (state === 'rolling_back') return 'yellow';
  return state === 'parked' ? 'red' : undefined;
}

const LISTED = '"oncegate sagas" lists the sagas that there are.';

export function sagaId(text: string): string {
  if (UUID.test(text)) return text.toLowerCase();
  throw new NotGood('not_found', `there is no saga ${JSON.stringify(text)}: its id is a UUID.\n${LISTED}`);
}

/** The path of a saga in the admin API. Nothing else than an id may become part of a path. */
export function sagaPath(text: string): string {
  return `/admin/sagas/${sagaId(text)}`;
}

/** What helps whoever asked about this saga and was refused. */
export function sagaAdvice(id: string): (problem: JsonObject) => string | undefined {
  return ({ code, detail }) => {
    if (code === 'not_found' && String(detail).startsWith('There is no saga')) return LISTED;
    return code === 'conflict' || code === 'saga_closed' || code === 'not_found'
      ? `"oncegate saga ${id}" shows how it stands.`
      : undefined;
  };
}

/** How a saga stands: one line to a program, a sentence to a person. */
export function tellState(out: Output, saga: JsonObject): void {
  const [id, state, reason] = [member(saga, 'saga'), member(saga, 'state'), member(saga, 'reason')];
  if (!out.terminal) {
    out.row([id, state, reason].filter(Boolean));
    return;
  }
  out.line(`${id} is `, paint(sagaStyle(state), state));
  if (state === 'parked') out.hang(['  '], paint('red', reason));
}

/** What a person may do about a parked saga. */
export function tellWayOut(out: Output, saga: JsonObject): void {
  if (!out.terminal || saga['state'] !== 'parked') return;
  const id = member(saga, 'saga');
  const steps = memberList(saga, 'steps');
  out.line('');
  out.line('It goes on when a person says so:');
  for (const step of steps.filter(({ state }) => state === 'in_doubt')) {
    out.line(`  oncegate resolve ${member(step, 'txn')} \\`);
    out.line('    --verdict … --reason TEXT  whether it happened');
  }
  // Its time ran out before anything was undone.
  const isUntouched = steps.every((step) => member(memberObject(step, 'undo'), 'state') === 'none');
  out.line(`  oncegate ${isUntouched ? 'rollback' : 'resume'} ${id} \\`);
  out.line(`    --reason TEXT              ${isUntouched ? 'its steps are undone' : 'what failed is tried again'}`);
  if (!isUntouched) out.line('    --waive TXN --reason TEXT  the rest no longer waits for that step');
  out.line(`  oncegate close ${id} \\`);
  out.line('    --reason TEXT              you have seen to the rest by hand');
}

export function tellSteps(out: Output, saga: JsonObject): void {
  const steps = memberList(saga, 'steps');
  const savepoints = memberList(saga, 'savepoints');
  const numbers = new Map(steps.map((step, index) => [member(step, 'txn'), index + 1]));
  const tellSavepoints = (after: number): void => {
    for (const savepoint of savepoints.filter((one) => one['after'] === after))
      if (out.terminal) out.hang([paint('dim', '    ── savepoint ')], member(savepoint, 'name'));
      else out.row(['savepoint', String(after), member(savepoint, 'name')]);
  };
  tellSavepoints(0);
  for (const [index, step] of steps.entries()) {
    if (out.terminal) tellStep(out, step, index + 1, numbers);
    else out.row(stepCells(step, index + 1));
    tellSavepoints(index + 1);
  }
}

function stepCells(step: JsonObject, number: number): string[] {
  const undo = memberObject(step, 'undo');
  const of = ['state', 'tool', 'txn', 'reason'].map((name) => member(undo, name));
  return ['step', String(number), member(step, 'txn'), member(step, 'tool'), member(step, 'state'), ...of];
}

function tellStep(out: Output, step: JsonObject, number: number, numbers: ReadonlyMap<string, number>): void {
  const state = member(step, 'state');
  out.hang([`${String(number).padStart(3)} `], paint('bold', member(step, 'tool')));
  const hang = (text: Piece): void => out.hang(['    '], text);
  out.line(`    ${member(step, 'txn')} `, paint(stateStyle(state), state));
  const rests = restsText(step, number, numbers);
  if (rests !== '') hang(paint('dim', rests));
  const undo = memberObject(step, 'undo');
  hang(paint(undoStyle(member(undo, 'state')), undoLine(undo)));
  if (member(undo, 'txn') !== '') out.hang(['      '], `as ${member(undo, 'txn')}`);
  if (member(undo, 'reason') !== '') out.hang(['      '], member(undo, 'reason'));
  if (step['waived'] === true) hang(paint('yellow', 'waived: nothing waits for it any more'));
}

/** Steps rest on all earlier ones unless their agent said otherwise: only that is worth a line. */
function restsText({ dependsOn }: JsonObject, number: number, numbers: ReadonlyMap<string, number>): string {
  const on = Array.isArray(dependsOn) ? dependsOn.map(textOf) : [];
  if (on.length === number - 1) return '';
  if (on.length === 0) return 'rests on no other step';
  return `rests on ${on.map((txn) => numbers.get(txn) ?? txn).join(', ')}`;
}

function undoLine(undo: JsonObject): string {
  const [state, kind, by] = [member(undo, 'state'), member(undo, 'kind'), undoCall(undo)];
  const how = by === '' ? (kind === '' ? 'no undo' : kind) : `by ${by}`;
  return state === 'none' ? `undo: ${how}` : `undo ${state}${by === '' ? '' : `: ${how}`}`;
}
