import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { formatJson, textField } from '../../json-fields.ts';
import { suggestNearestOrAll } from '../../name-suggestions.ts';
import { type Output, paint, type Style, type StyledText } from '../../output.ts';
import { readList } from '../../read-list.ts';
import { type Invocation, type Io, VerbError } from '../../verb.ts';

/** Asks a running gateway what it would do with a call. The gateway sends nothing. */
export async function explainRemotely(
  { io, out }: Pick<Invocation, 'io' | 'out'>,
  call: { agent: string; tool: string; args: JsonObject },
): Promise<number> {
  const advice = ({ code }: JsonObject) => (code === 'not_found' ? '"oncegate agents" lists the agents.' : undefined);
  const explained = await requestGateway(io, '/admin/explain', { method: 'POST', body: call, advice }).catch(
    async (error) => {
      throw error instanceof VerbError && error.code === 'not_found'
        ? await buildUnknownAgentError(io, call.agent, error)
        : error;
    },
  );
  out.printJson(explained);
  const answer = asObject(explained['wouldAnswer']);
  const isGood = Number(answer['status']) < 400;
  printExplanation(out, explained, answer, isGood);
  return isGood ? 0 : 1;
}

async function buildUnknownAgentError(io: Io, name: string, error: VerbError): Promise<VerbError> {
  const { items } = await readList(io, '/admin/agents');
  const agents = items.map((item) => textField(item, 'agent'));
  if (agents.includes(name)) return error;
  const message = `There is no agent ${JSON.stringify(name)}${await suggestNearestOrAll(name, agents)}`;
  return new VerbError(error.code, message, { ...error.members, agents });
}

/** Printed in their own form. All other fields are printed as they are, also those of a newer gateway. */
const SEPARATE_FIELDS = ['dryRun', 'wouldAnswer', 'decision', 'detail', 'faults'];

function printExplanation(out: Output, explained: JsonObject, answer: JsonObject, isGood: boolean): void {
  const decision = asObject(explained['decision']);
  const outcome = classifyAnswer(answer, isGood);
  out.printHanging(
    [paint(outcome.style, outcome.word), out.isTerminal ? ': ' : '\t'],
    findReason(explained, decision, answer),
  );
  const { faults } = explained;
  for (const fault of Array.isArray(faults) ? faults : []) out.printLine(paint('red', `  ${formatJson(fault)}`));
  const fields = Object.keys(explained)
    .filter((name) => !SEPARATE_FIELDS.includes(name) && formatJson(explained[name]) !== '')
    .map((name): [string, StyledText] => [name, formatJson(explained[name])]);
  out.printFields([['would answer', formatAnswer(answer)], ...fields]);
  const tried = Array.isArray(decision['tried']) ? decision['tried'].filter(isJsonObject) : [];
  for (const rule of tried) printRule(out, rule, textField(rule, 'rule') === textField(decision, 'rule'));
}

function classifyAnswer(answer: JsonObject, isGood: boolean): { word: string; style: Style } {
  if (!isGood) return { word: 'refused', style: 'red' };
  if (answer['state'] === 'held') return { word: 'hold', style: 'yellow' };
  return answer['replayed'] === true ? { word: 'replay', style: 'green' } : { word: 'allow', style: 'green' };
}

function findReason(explained: JsonObject, decision: JsonObject, answer: JsonObject): string {
  const detail = textField(explained, 'detail') || textField(decision, 'reason');
  if (detail !== '') return detail;
  const rule = textField(decision, 'rule');
  return rule === '' ? textField(answer, 'code') : `Allowed by ${rule}.`;
}

/** `429 rate_limited, nothing is sent` */
function formatAnswer(answer: JsonObject): string {
  const words = [textField(answer, 'status'), textField(answer, 'code') || textField(answer, 'state')]
    .filter(Boolean)
    .join(' ');
  const notes = [answer['replayed'] === true ? 'replayed' : '', answer['sends'] === true ? 'sends' : 'nothing is sent'];
  return [words, ...notes].filter(Boolean).join(', ');
}

function printRule(out: Output, rule: JsonObject, isDeciding: boolean): void {
  const [verdict, id, why] = [textField(rule, 'verdict'), textField(rule, 'rule'), textField(rule, 'why')];
  if (!out.isTerminal) {
    out.printLine([isDeciding ? 'decides' : 'tried', verdict, id, why].join('\t'));
    return;
  }
  out.printLine('');
  out.printLine(isDeciding ? paint('bold', '→ ') : '  ', paint(isDeciding ? 'bold' : undefined, `${verdict}: ${id}`));
  out.printHanging(['    '], why);
}

function asObject(value: unknown): JsonObject {
  return isJsonObject(value) ? value : {};
}
