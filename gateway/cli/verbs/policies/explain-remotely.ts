import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { nearOrAll } from '../../nearest-name.ts';
import { type Output, type Piece, paint, type Style } from '../../output.ts';
import { readList } from '../../pages.ts';
import { type Invocation, type Io, NotGood } from '../../verb.ts';
import { member, textOf } from '../calls/call-text.ts';

/** What a running gateway would do with a call, as far as it can know without sending anything. */
export async function explainRemotely(
  { io, out }: Pick<Invocation, 'io' | 'out'>,
  call: { agent: string; tool: string; args: JsonObject },
): Promise<number> {
  const advice = ({ code }: JsonObject) => (code === 'not_found' ? '"oncegate agents" lists the agents.' : undefined);
  const explained = await askGateway(io, '/admin/explain', { method: 'POST', body: call, advice }).catch(
    async (error) => {
      throw error instanceof NotGood && error.code === 'not_found' ? await unknownAgent(io, call.agent, error) : error;
    },
  );
  out.json(explained);
  const answer = objectOf(explained['wouldAnswer']);
  const isGood = Number(answer['status']) < 400;
  tell(out, explained, answer, isGood);
  return isGood ? 0 : 1;
}

async function unknownAgent(io: Io, name: string, error: NotGood): Promise<NotGood> {
  const { items } = await readList(io, '/admin/agents', {}, Number.POSITIVE_INFINITY);
  const agents = items.map((item) => member(item, 'agent'));
  if (agents.includes(name)) return error;
  const message = `there is no agent ${JSON.stringify(name)}${await nearOrAll(name, agents)}`;
  return new NotGood(error.code, message, { ...error.members, agents });
}

/** Told apart from the rest, which is told as it comes: whatever the gateway learns to explain is shown. */
const APART = ['dryRun', 'wouldAnswer', 'decision', 'detail', 'faults'];

function tell(out: Output, explained: JsonObject, answer: JsonObject, isGood: boolean): void {
  const decision = objectOf(explained['decision']);
  const outcome = outcomeOf(answer, isGood);
  out.line(paint(outcome.style, outcome.word), out.terminal ? ': ' : '\t', reasonOf(explained, decision, answer));
  const { faults } = explained;
  for (const fault of Array.isArray(faults) ? faults : []) out.line(paint('red', `  ${textOf(fault)}`));
  const fields = Object.keys(explained)
    .filter((name) => !APART.includes(name) && textOf(explained[name]) !== '')
    .map((name): [string, Piece] => [name, textOf(explained[name])]);
  out.fields([['would answer', answerText(answer)], ...fields]);
  const tried = Array.isArray(decision['tried']) ? decision['tried'].filter(isJsonObject) : [];
  for (const rule of tried) tellRule(out, rule, member(rule, 'rule') === member(decision, 'rule'));
}

function outcomeOf(answer: JsonObject, isGood: boolean): { word: string; style: Style } {
  if (!isGood) return { word: 'refused', style: 'red' };
  if (answer['state'] === 'held') return { word: 'hold', style: 'yellow' };
  return answer['replayed'] === true ? { word: 'replay', style: 'green' } : { word: 'allow', style: 'green' };
}

function reasonOf(explained: JsonObject, decision: JsonObject, answer: JsonObject): string {
  const said = member(explained, 'detail') || member(decision, 'reason');
  if (said !== '') return said;
  const rule = member(decision, 'rule');
  return rule === '' ? member(answer, 'code') : `allowed by ${rule}`;
}

/** `429 rate_limited, nothing is sent` */
function answerText(answer: JsonObject): string {
  const words = [member(answer, 'status'), member(answer, 'code') || member(answer, 'state')].filter(Boolean).join(' ');
  const notes = [answer['replayed'] === true ? 'replayed' : '', answer['sends'] === true ? 'sends' : 'nothing is sent'];
  return [words, ...notes].filter(Boolean).join(', ');
}

function tellRule(out: Output, rule: JsonObject, decides: boolean): void {
  const [verdict, id, why] = [member(rule, 'verdict'), member(rule, 'rule'), member(rule, 'why')];
  if (!out.terminal) {
    out.line([decides ? 'decides' : 'tried', verdict, id, why].join('\t'));
    return;
  }
  out.line('');
  out.line(decides ? paint('bold', '→ ') : '  ', paint(decides ? 'bold' : undefined, `${verdict}: ${id}`));
  out.line('    ', why);
}

function objectOf(value: unknown): JsonObject {
  return isJsonObject(value) ? value : {};
}
