import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import { fieldColumn, listVerb } from '../../list-verb.ts';
import { type Output, paint } from '../../output.ts';
import { readList } from '../../read-list.ts';
import { REASON_OPTION, readReason } from '../../reason-option.ts';
import { type Verb, VerbError } from '../../verb.ts';

export const pinsVerb = listVerb({
  name: 'pins',
  summary: 'list imported MCP tools, and which of them changed',
  path: '/admin/pins',
  isPaged: false,
  columns: [
    fieldColumn('upstream', { canTruncate: true }),
    fieldColumn('tool', { canTruncate: true }),
    {
      title: 'state',
      cell: (pin) => paint(isJsonObject(pin['offered']) ? 'red' : 'green', textField(pin, 'state')),
    },
    {
      title: 'since',
      cell: (pin) => {
        const { offered } = pin;
        return isJsonObject(offered) ? textField(offered, 'since') : textField(pin, 'pinnedAt');
      },
    },
    fieldColumn('acceptedBy', { title: 'accepted by', canTruncate: true }),
  ],
  emptyMessage: 'No tools are imported from MCP servers.',
});

/** Sends the digest of the change it shows, so the gateway refuses if the server has changed the tool again. */
export const acceptVerb: Verb = {
  name: 'accept',
  summary: 'accept the changed definition of an imported tool',
  operands: [{ name: 'upstream' }, { name: 'tool' }],
  options: { reason: REASON_OPTION, digest: { value: 'HEX', help: 'accept only the definition with this digest' } },
  run: async (invocation) => {
    const { io, out, operands, text } = invocation;
    const [upstream = '', tool = ''] = operands;
    const { items } = await readList(io, '/admin/pins');
    const pin = items.find((item) => item['upstream'] === upstream && item['tool'] === tool);
    if (pin === undefined)
      throw new VerbError('not_found', `${upstream} has no tool ${tool}.\n"oncegate pins" lists the tools.`);
    const { offered } = pin;
    if (!isJsonObject(offered)) throw new VerbError('conflict', `${tool} of ${upstream} has not changed.`);
    if (out.isTerminal) printDefinitionDiff(out, pin, offered);
    const answer = await requestGateway(
      io,
      `/admin/pins/${encodeURIComponent(upstream)}/${encodeURIComponent(tool)}/accept`,
      {
        method: 'POST',
        body: { reason: readReason(invocation), digest: text('digest') ?? textField(offered, 'digest') },
      },
    );
    out.printJson(answer);
    if (!out.isTerminal) out.printLine(`${upstream}\t${tool}\t${textField(answer, 'state')}`);
    else out.printLine(`${tool} of ${upstream} is `, paint('green', 'pinned'), ' to the new definition');
    return 0;
  },
};

function printDefinitionDiff(out: Output, pin: JsonObject, offered: JsonObject): void {
  const [before, after] = [pin, offered].map(({ definition }) => JSON.stringify(definition, null, 2).split('\n'));
  for (const line of before ?? []) if (after?.includes(line) === false) out.printLine(paint('red', `- ${line}`));
  for (const line of after ?? []) if (before?.includes(line) === false) out.printLine(paint('green', `+ ${line}`));
}
