import type { JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { listField, objectField, textField } from '../../json-fields.ts';
import { type Output, paint } from '../../output.ts';
import { formatCount } from '../../quantities.ts';
import type { Invocation } from '../../verb.ts';
import { startAndWatch } from '../../watch-operation.ts';
import { buildSagaAdvice, buildSagaPath, printNextCommands, printSagaState } from './saga-text.ts';
import { undoStateStyle } from './undo-text.ts';

/** Starts or resumes a rollback and watches it to its end. Returns exit code 0 unless the saga is parked. */
export async function runRollback(
  invocation: Invocation,
  id: string,
  action: 'rollback' | 'resume',
  body: JsonObject,
): Promise<number> {
  const { io, out } = invocation;
  const advice = buildSagaAdvice(id);
  const before = await requestGateway(io, buildSagaPath(id), { advice });
  const progress = new RollbackProgress(out, before);
  const ended = await startAndWatch(invocation, {
    start: () => requestGateway(io, `${buildSagaPath(id)}/${action}`, { method: 'POST', body, advice }),
    path: buildSagaPath(id),
    isFinished: ({ state }) => state !== 'rolling_back',
    onUpdate: (seen) => progress.printChanges(seen),
    interruptedMessage: `You stopped watching. The rollback continues in the gateway.\n"oncegate saga ${id}" shows its state.`,
  });
  out.printJson(ended);
  progress.printSummary(ended);
  printSagaState(out, ended);
  printNextCommands(out, ended);
  return ended['state'] === 'parked' ? 1 : 0;
}

/** Prints one line for every change of a step's undo since the rollback was requested. */
class RollbackProgress {
  readonly #out: Output;
  readonly #startedAt = performance.now();
  readonly #lastPrinted = new Map<string, string>();

  constructor(out: Output, before: JsonObject) {
    this.#out = out;
    this.#findChanges(before);
  }

  printChanges(saga: JsonObject): void {
    for (const step of this.#findChanges(saga)) this.#printStep(step);
  }

  /** The steps whose undo changed since the last call; the latest step first. */
  #findChanges(saga: JsonObject): JsonObject[] {
    return listField(saga, 'steps')
      .toReversed()
      .filter((step) => {
        const undo = objectField(step, 'undo');
        const current = `${textField(undo, 'state')} ${textField(undo, 'reason')}`;
        const txn = textField(step, 'txn');
        if (this.#lastPrinted.get(txn) === current || undo['state'] === 'none') return false;
        this.#lastPrinted.set(txn, current);
        return true;
      });
  }

  #printStep(step: JsonObject): void {
    const undo = objectField(step, 'undo');
    const [state, reason] = [textField(undo, 'state'), textField(undo, 'reason')];
    const [txn, tool] = [textField(step, 'txn'), textField(step, 'tool')];
    if (!this.#out.isTerminal) {
      this.#out.printRow([state, txn, tool, textField(undo, 'tool'), reason]);
      return;
    }
    const at = `${((performance.now() - this.#startedAt) / 1000).toFixed(1)}s`.padStart(7);
    const mark = [paint('dim', at), '  ', paint(undoStateStyle(state), state.padEnd(12)), '  '];
    this.#out.printHanging(mark, `${tool} ${txn}`);
    if (reason !== '') this.#out.printHanging([' '.repeat(23)], paint('dim', reason));
  }

  printSummary(saga: JsonObject): void {
    if (!this.#out.isTerminal) return;
    // A step in doubt blocks the rollback and has no undo yet.
    const states = listField(saga, 'steps').map((step) =>
      step['state'] === 'in_doubt' ? 'in_doubt' : textField(objectField(step, 'undo'), 'state'),
    );
    const count = (...of: string[]) => states.filter((state) => of.includes(state)).length;
    const left = count('failed', 'irreversible', 'due', 'running', 'in_doubt');
    this.#out.printLine('');
    this.#out.printLine(
      `${formatCount(count('done'), 'step')} undone, ${count('skipped')} needed no undo`,
      left === 0 ? '' : paint('red', `, ${left} not undone`),
    );
  }
}
