import type { JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { counted } from '../../count-words.ts';
import { type Output, paint } from '../../output.ts';
import type { Invocation } from '../../verb.ts';
import { watch } from '../../watch.ts';
import { member, memberList, memberObject } from '../calls/call-text.ts';
import { sagaAdvice, sagaPath, tellState, tellWayOut } from './saga-text.ts';
import { undoStyle } from './undo-text.ts';

/** Has a saga rolled back and follows it until it rests. Exit code 0: what was asked for is undone. */
export async function followRollback(
  invocation: Invocation,
  id: string,
  act: 'rollback' | 'resume',
  body: JsonObject,
): Promise<number> {
  const { io, out } = invocation;
  const advice = sagaAdvice(id);
  const before = await askGateway(io, sagaPath(id), { advice });
  const progress = new Progress(out, before);
  const ended = await watch(invocation, {
    begin: () => askGateway(io, `${sagaPath(id)}/${act}`, { method: 'POST', body, advice }),
    path: sagaPath(id),
    isAtRest: ({ state }) => state !== 'rolling_back',
    tell: (seen) => progress.tell(seen),
    goesOn: `Nobody watches any more, but the rollback goes on by itself.\n"oncegate saga ${id}" shows how it stands.`,
  });
  out.json(ended);
  progress.sum(ended);
  tellState(out, ended);
  tellWayOut(out, ended);
  return ended['state'] === 'parked' ? 1 : 0;
}

/** One line for every change of a step's undo since the rollback was asked for. */
class Progress {
  readonly #out: Output;
  readonly #begun = performance.now();
  readonly #said = new Map<string, string>();

  constructor(out: Output, before: JsonObject) {
    this.#out = out;
    this.#news(before);
  }

  tell(saga: JsonObject): void {
    for (const step of this.#news(saga)) this.#line(step);
  }

  /** The steps that a rollback came to, or that changed, since this was last asked; the latest step first. */
  #news(saga: JsonObject): JsonObject[] {
    return memberList(saga, 'steps')
      .toReversed()
      .filter((step) => {
        const undo = memberObject(step, 'undo');
        const now = `${member(undo, 'state')} ${member(undo, 'reason')}`;
        const txn = member(step, 'txn');
        if (this.#said.get(txn) === now || undo['state'] === 'none') return false;
        this.#said.set(txn, now);
        return true;
      });
  }

  #line(step: JsonObject): void {
    const undo = memberObject(step, 'undo');
    const [state, reason] = [member(undo, 'state'), member(undo, 'reason')];
    const [txn, tool] = [member(step, 'txn'), member(step, 'tool')];
    if (!this.#out.terminal) {
      this.#out.row([state, txn, tool, member(undo, 'tool'), reason]);
      return;
    }
    const at = `${((performance.now() - this.#begun) / 1000).toFixed(1)}s`.padStart(7);
    const mark = [paint('dim', at), '  ', paint(undoStyle(state), state.padEnd(12)), '  '];
    this.#out.hang(mark, `${tool} ${txn}`);
    if (reason !== '') this.#out.hang([' '.repeat(23)], paint('dim', reason));
  }

  sum(saga: JsonObject): void {
    if (!this.#out.terminal) return;
    // A doubt is in the way of a rollback, and has no undo yet.
    const states = memberList(saga, 'steps').map((step) =>
      step['state'] === 'in_doubt' ? 'in_doubt' : member(memberObject(step, 'undo'), 'state'),
    );
    const count = (...of: string[]) => states.filter((state) => of.includes(state)).length;
    const left = count('failed', 'irreversible', 'due', 'running', 'in_doubt');
    this.#out.line('');
    this.#out.line(
      `${counted(count('done'), 'step')} undone, ${count('skipped')} needed nothing`,
      left === 0 ? '' : paint('red', `, ${left} not undone`),
    );
  }
}
