import { isJsonObject, type JsonObject } from '../../../domain/json.ts';
import { askGateway } from '../../ask-gateway.ts';
import { type Column, type Output, paint } from '../../output.ts';
import { readList } from '../../pages.ts';
import { REASON, reasonOf } from '../../reason-option.ts';
import { NotGood, type Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

export const pinsVerb: Verb = {
  name: 'pins',
  summary: 'what MCP servers say of their tools, and what changed',
  run: async ({ io, out }) => {
    const { items } = await readList(io, '/admin/pins', {}, Number.POSITIVE_INFINITY);
    out.json({ items, cursor: null });
    tell(out, items);
    if (out.terminal && items.length === 0) out.line('no tools are imported from MCP servers');
    return 0;
  },
};

/** Shows what changed and accepts exactly that: if the server says something else again meanwhile, nothing is accepted. */
export const acceptVerb: Verb = {
  name: 'accept',
  summary: 'accept what an MCP server now says of a tool',
  operands: [{ name: 'upstream' }, { name: 'tool' }],
  options: { reason: REASON, digest: { value: 'HEX', help: 'accept only if this is what is offered' } },
  run: async (invocation) => {
    const { io, out, operands, text } = invocation;
    const [upstream = '', tool = ''] = operands;
    const { items } = await readList(io, '/admin/pins', {}, Number.POSITIVE_INFINITY);
    const pin = items.find((item) => item['upstream'] === upstream && item['tool'] === tool);
    if (pin === undefined)
      throw new NotGood('not_found', `${upstream} has no tool ${tool}.\n"oncegate pins" lists them.`);
    const { offered } = pin;
    if (!isJsonObject(offered)) throw new NotGood('conflict', `${tool} of ${upstream} is as it was pinned.`);
    if (out.terminal) showChange(out, pin, offered);
    const answer = await askGateway(
      io,
      `/admin/pins/${encodeURIComponent(upstream)}/${encodeURIComponent(tool)}/accept`,
      {
        method: 'POST',
        body: { reason: reasonOf(invocation), digest: text('digest') ?? member(offered, 'digest') },
      },
    );
    out.json(answer);
    if (!out.terminal) out.line(`${upstream}\t${tool}\t${member(answer, 'state')}`);
    else out.line(`${tool} of ${upstream} is `, paint('green', 'pinned'), ' as it is offered now');
    return 0;
  },
};

function showChange(out: Output, pin: JsonObject, offered: JsonObject): void {
  const [before, after] = [pin, offered].map(({ definition }) => JSON.stringify(definition, null, 2).split('\n'));
  for (const line of before ?? []) if (after?.includes(line) === false) out.line(paint('red', `- ${line}`));
  for (const line of after ?? []) if (before?.includes(line) === false) out.line(paint('green', `+ ${line}`));
}

const COLUMNS: readonly Column[] = [
  { title: 'upstream', cut: true },
  { title: 'tool', cut: true },
  { title: 'state' },
  { title: 'since' },
  { title: 'accepted by', cut: true },
];

function tell(out: Output, items: readonly JsonObject[]): void {
  if (items.length === 0) return;
  out.table(
    COLUMNS,
    items.map((pin) => {
      const { offered } = pin;
      const isChanged = isJsonObject(offered);
      return [
        member(pin, 'upstream'),
        member(pin, 'tool'),
        paint(isChanged ? 'red' : 'green', member(pin, 'state')),
        isChanged ? member(offered, 'since') : member(pin, 'pinnedAt'),
        member(pin, 'acceptedBy'),
      ];
    }),
  );
}
