import type { JsonObject } from '../../../domain/json.ts';
import { counted } from '../../count-words.ts';
import { type Output, paint } from '../../output.ts';
import { member, memberList, memberObject } from '../calls/call-text.ts';
import { sagaStyle } from './saga-text.ts';
import { undoCall } from './undo-text.ts';

/** Tells what a rollback would do, the first thing first. Exit code 0: it would undo everything that was asked for. */
export function tellPlan(out: Output, plan: JsonObject): number {
  const state = member(plan, 'state');
  // What is over is refused whatever its plan would be.
  const isOver = state === 'committed' || state === 'closed';
  const end = member(plan, 'wouldEnd');
  if (out.terminal) tellTree(out, plan, isOver);
  else tellLines(out, plan);
  if (isOver) out.note(`It cannot be rolled back: it is ${state}.`);
  return isOver || end === 'parked' ? 1 : 0;
}

function tellLines(out: Output, plan: JsonObject): void {
  const head = ['saga', 'state', 'to', 'wouldEnd', 'digest'].filter((name) => member(plan, name) !== '');
  out.fields(head.map((name) => [name, member(plan, name)]));
  for (const step of memberList(plan, 'plan')) {
    const undo = memberObject(step, 'undo');
    const about = ['does', 'wave', 'txn', 'tool'].map((name) => member(step, name));
    const how = [member(undo, 'tool'), member(undo, 'args')];
    out.row([...about, ...how, member(step, 'why'), member(step, 'blockedBy')]);
  }
  for (const step of memberList(plan, 'kept')) out.row(['keep', '', member(step, 'txn'), member(step, 'tool')]);
}

function tellTree(out: Output, plan: JsonObject, isOver: boolean): void {
  const steps = memberList(plan, 'plan');
  const to = member(plan, 'to');
  const does = (what: string) => steps.filter((step) => member(step, 'does') === what);
  out.line('Nothing is done: this is what a rollback would do.');
  const name = to === '' ? '' : ` to savepoint ${to}`;
  out.hang([], paint('dim', `saga ${member(plan, 'saga')}, ${member(plan, 'state')}${name}`));
  tellWaves(out, steps);
  tellGroup(out, 'withdrawn', does('cancel'));
  tellGroup(out, 'nothing to undo', does('nothing'));
  tellHindrances(out, does('cannot'), steps);
  tellKept(out, memberList(plan, 'kept'));
  out.line('');
  if (!isOver) tellEnd(out, plan, steps);
}

/** What is undone, all of one wave at once. */
function tellWaves(out: Output, steps: readonly JsonObject[]): void {
  const numbers = [...new Set(steps.map(({ wave }) => wave).filter((wave) => typeof wave === 'number'))];
  for (const number of numbers.sort((a, b) => a - b)) {
    const wave = steps.filter((step) => step['wave'] === number);
    const atOnce = wave.length === 1 ? '' : `, ${wave.length} at once`;
    out.line('');
    out.line(paint('bold', `${number}. ${number === 1 ? 'first' : 'then'}${atOnce}`));
    for (const [index, step] of wave.entries()) tellUndone(out, step, index === wave.length - 1);
  }
}

function tellUndone(out: Output, step: JsonObject, isLast: boolean): void {
  const [branch, below] = isLast ? ['   └─ ', '      '] : ['   ├─ ', '   │  '];
  out.hang([branch], paint('bold', nameOf(step)));
  if (step['does'] === 'wait') out.hang([below], paint('yellow', `${member(step, 'why')}; if it happened:`));
  out.hang([`${below}undone by `], howOf(step));
}

function nameOf(step: JsonObject): string {
  return `${member(step, 'tool')} ${member(step, 'txn')}`;
}

/** Without arguments as long as the outcome that they are made from is not known. */
function howOf(step: JsonObject): string {
  const how = undoCall(memberObject(step, 'undo'));
  return how === '' ? 'nothing: its contract names no undo' : how;
}

function tellGroup(out: Output, title: string, steps: readonly JsonObject[]): void {
  if (steps.length === 0) return;
  out.line('');
  out.line(paint('bold', title));
  for (const step of steps) {
    out.hang(['   '], nameOf(step));
    out.hang(['      '], paint('dim', member(step, 'why')));
  }
}

/** What cannot be undone, why, and below it what would wait for it. */
function tellHindrances(out: Output, hindrances: readonly JsonObject[], steps: readonly JsonObject[]): void {
  if (hindrances.length === 0) return;
  out.line('');
  out.line(paint('red', 'cannot be undone'));
  for (const step of hindrances) {
    out.hang(['   '], paint('bold', nameOf(step)));
    out.hang(['      '], paint('red', member(step, 'why')));
    const waiting = steps.filter((other) => member(other, 'blockedBy') === member(step, 'txn'));
    if (waiting.length > 0) out.line('      it rests on these, so they would wait for it:');
    for (const [index, other] of waiting.entries()) {
      const [branch, below] = index === waiting.length - 1 ? ['      └─ ', '         '] : ['      ├─ ', '      │  '];
      out.hang([branch], paint('bold', nameOf(other)));
      out.hang([`${below}undone by `], howOf(other));
    }
  }
}

function tellKept(out: Output, kept: readonly JsonObject[]): void {
  if (kept.length === 0) return;
  out.line('');
  out.line(paint('bold', 'kept'));
  for (const step of kept) out.hang(['   '], nameOf(step));
}

function tellEnd(out: Output, plan: JsonObject, steps: readonly JsonObject[]): void {
  const end = member(plan, 'wouldEnd');
  const count = (test: (step: JsonObject) => boolean) => steps.filter(test).length;
  const stuck = count((step) => step['does'] === 'cannot');
  const blocked = count((step) => member(step, 'blockedBy') !== '');
  const undone = count((step) => typeof step['wave'] === 'number');
  const waits = count((step) => step['does'] === 'wait');
  const said = [
    `${counted(undone, 'step')} undone`,
    ...(stuck === 0 ? [] : [`${stuck} cannot be`]),
    ...(blocked === 0 ? [] : [`${blocked} would wait for ${stuck === 1 ? 'it' : 'them'}`]),
  ];
  out.line('It would end ', paint(sagaStyle(end), end), `: ${said.join(', ')}.`);
  if (waits > 0) out.line(`That is how things stand; ${counted(waits, 'outcome')} may still change it.`);
  tellHow(out, plan);
  if (end !== 'parked') return;
  out.line('Once it is parked a person decides about the rest:');
  out.line(`  oncegate resume ${member(plan, 'saga')} \\`);
  out.line('    --waive TXN --reason TEXT');
}

/** The order that is bound to what was just shown. */
function tellHow(out: Output, plan: JsonObject): void {
  const to = member(plan, 'to') === '' ? '' : '--to SAVEPOINT ';
  out.line('To have exactly this undone, or nothing:');
  out.line(`  oncegate rollback ${member(plan, 'saga')} \\`);
  out.line(`    ${to}--reason TEXT \\`);
  out.line(`    --digest ${member(plan, 'digest')}`);
}
