import type { JsonObject } from '../../../domain/json.ts';
import { listField, objectField, textField } from '../../json-fields.ts';
import { type Output, paint } from '../../output.ts';
import { formatCount } from '../../quantities.ts';
import { sagaStateStyle } from './saga-text.ts';
import { formatUndoCall } from './undo-text.ts';

/** Prints what a rollback would do, in order. Returns exit code 0 if it would undo everything. */
export function printPlan(out: Output, plan: JsonObject): number {
  const state = textField(plan, 'state');
  // The gateway refuses to roll back such a saga, whatever its plan.
  const isOver = state === 'committed' || state === 'closed';
  const end = textField(plan, 'wouldEnd');
  if (out.isTerminal) printPlanTree(out, plan, isOver);
  else printPlanRows(out, plan);
  if (isOver) out.printNote(`The saga cannot be rolled back: it is ${state}.`);
  return isOver || end === 'parked' ? 1 : 0;
}

function printPlanRows(out: Output, plan: JsonObject): void {
  const head = ['saga', 'state', 'to', 'wouldEnd', 'digest'].filter((name) => textField(plan, name) !== '');
  out.printFields(head.map((name) => [name, textField(plan, name)]));
  for (const step of listField(plan, 'plan')) {
    const undo = objectField(step, 'undo');
    const about = ['does', 'wave', 'txn', 'tool'].map((name) => textField(step, name));
    const how = [textField(undo, 'tool'), textField(undo, 'args')];
    out.printRow([...about, ...how, textField(step, 'why'), textField(step, 'blockedBy')]);
  }
  for (const step of listField(plan, 'kept'))
    out.printRow(['keep', '', textField(step, 'txn'), textField(step, 'tool')]);
}

function printPlanTree(out: Output, plan: JsonObject, isOver: boolean): void {
  const steps = listField(plan, 'plan');
  const to = textField(plan, 'to');
  const stepsThat = (action: string) => steps.filter((step) => textField(step, 'does') === action);
  if (!isOver) out.printLine('Dry run: a rollback would do this.');
  const name = to === '' ? '' : ` to savepoint ${to}`;
  out.printHanging([], paint('dim', `saga ${textField(plan, 'saga')}, ${textField(plan, 'state')}${name}`));
  printWaves(out, steps);
  printGroup(out, 'withdrawn', stepsThat('cancel'));
  printGroup(out, 'nothing to undo', stepsThat('nothing'));
  printObstacles(out, stepsThat('cannot'), steps);
  printKept(out, listField(plan, 'kept'));
  out.printLine('');
  if (!isOver) printSummary(out, plan, steps);
}

/** All undos of one wave run at once. */
function printWaves(out: Output, steps: readonly JsonObject[]): void {
  const numbers = [...new Set(steps.map(({ wave }) => wave).filter((wave) => typeof wave === 'number'))];
  for (const number of numbers.sort((a, b) => a - b)) {
    const wave = steps.filter((step) => step['wave'] === number);
    const atOnce = wave.length === 1 ? '' : `, ${wave.length} at once`;
    out.printLine('');
    out.printLine(paint('bold', `${number}. ${number === 1 ? 'first' : 'then'}${atOnce}`));
    for (const [index, step] of wave.entries()) printUndo(out, step, index === wave.length - 1);
  }
}

function printUndo(out: Output, step: JsonObject, isLast: boolean): void {
  const [branch, below] = isLast ? ['   └─ ', '      '] : ['   ├─ ', '   │  '];
  out.printHanging([branch], paint('bold', formatStep(step)));
  if (step['does'] === 'wait') out.printHanging([below], paint('yellow', `${textField(step, 'why')}; if it happened:`));
  out.printHanging([`${below}undone by `], formatStepUndo(step));
}

function formatStep(step: JsonObject): string {
  return `${textField(step, 'tool')} ${textField(step, 'txn')}`;
}

/** Has no arguments while the result that they are built from is unknown. */
function formatStepUndo(step: JsonObject): string {
  const how = formatUndoCall(objectField(step, 'undo'));
  return how === '' ? 'nothing: its contract has no undo' : how;
}

function printGroup(out: Output, title: string, steps: readonly JsonObject[]): void {
  if (steps.length === 0) return;
  out.printLine('');
  out.printLine(paint('bold', title));
  for (const step of steps) {
    out.printHanging(['   '], formatStep(step));
    out.printHanging(['      '], paint('dim', textField(step, 'why')));
  }
}

/** Prints the steps that cannot be undone, and below each the steps that would wait for it. */
function printObstacles(out: Output, obstacles: readonly JsonObject[], steps: readonly JsonObject[]): void {
  if (obstacles.length === 0) return;
  out.printLine('');
  out.printLine(paint('red', 'cannot be undone'));
  for (const step of obstacles) {
    out.printHanging(['   '], paint('bold', formatStep(step)));
    out.printHanging(['      '], paint('red', textField(step, 'why')));
    const waiting = steps.filter((other) => textField(other, 'blockedBy') === textField(step, 'txn'));
    if (waiting.length > 0) out.printLine('      These steps would wait, because it depends on them:');
    for (const [index, other] of waiting.entries()) {
      const [branch, below] = index === waiting.length - 1 ? ['      └─ ', '         '] : ['      ├─ ', '      │  '];
      out.printHanging([branch], paint('bold', formatStep(other)));
      out.printHanging([`${below}undone by `], formatStepUndo(other));
    }
  }
}

function printKept(out: Output, kept: readonly JsonObject[]): void {
  if (kept.length === 0) return;
  out.printLine('');
  out.printLine(paint('bold', 'kept'));
  for (const step of kept) out.printHanging(['   '], formatStep(step));
}

function printSummary(out: Output, plan: JsonObject, steps: readonly JsonObject[]): void {
  const end = textField(plan, 'wouldEnd');
  const count = (test: (step: JsonObject) => boolean) => steps.filter(test).length;
  const obstacles = count((step) => step['does'] === 'cannot');
  const blocked = count((step) => textField(step, 'blockedBy') !== '');
  const undone = count((step) => typeof step['wave'] === 'number');
  const waits = count((step) => step['does'] === 'wait');
  const parts = [
    `${formatCount(undone, 'step')} undone`,
    ...(obstacles === 0 ? [] : [`${obstacles} cannot be undone`]),
    ...(blocked === 0 ? [] : [`${blocked} would wait for ${obstacles === 1 ? 'it' : 'them'}`]),
  ];
  out.printLine('It would end ', paint(sagaStateStyle(end), end), `: ${parts.join(', ')}.`);
  if (waits > 0) out.printLine(`${formatCount(waits, 'unknown outcome')} may still change this plan.`);
  printRollbackCommand(out, plan);
  if (end !== 'parked') return;
  out.printLine('When it is parked, you can continue without a step:');
  out.printLine(`  oncegate resume ${textField(plan, 'saga')} \\`);
  out.printLine('    --waive TXN --reason TEXT');
}

/** The digest binds the rollback to the plan that was shown. */
function printRollbackCommand(out: Output, plan: JsonObject): void {
  const to = textField(plan, 'to') === '' ? '' : '--to SAVEPOINT ';
  out.printLine('To roll back exactly this plan, or nothing:');
  out.printLine(`  oncegate rollback ${textField(plan, 'saga')} \\`);
  out.printLine(`    ${to}--reason TEXT \\`);
  out.printLine(`    --digest ${textField(plan, 'digest')}`);
}
