import { counted } from '../../count-words.ts';
import { paint } from '../../output.ts';
import { readDirectory } from '../../policies.ts';
import type { Verb } from '../../verb.ts';

export const checkVerb: Verb = {
  name: 'check',
  summary: 'every fault of the policies, with its place',
  operands: [{ name: 'dir', optional: true }],
  run: async (invocation) => {
    const { out } = invocation;
    const { dir, files, loaded } = await readDirectory(invocation);
    const { formatFault } = await import('../../../policy/load-policies.ts');
    const { warnings } = loaded;
    for (const warning of warnings)
      out.line(paint('yellow', formatFault({ ...warning, message: `warning: ${warning.message}` })));
    const fileCount = counted(files, 'file');
    if (!loaded.ok) {
      const { faults } = loaded;
      for (const fault of faults) out.line(paint('red', formatFault(fault)));
      out.line(`${fileCount}: ${counted(faults.length, 'fault')}`);
      out.json({ good: false, dir, files, faults, warnings });
      return 1;
    }
    const { version, upstreams, tools, agents, people } = loaded.policies;
    if (files === 0) out.note(`there is no *.yaml below ${dir}: nobody may do anything`);
    out.line(
      `${fileCount}, ${counted(tools.size, 'tool')}, ${counted(agents.size, 'agent')}: `,
      paint('green', 'good'),
    );
    const counts = { upstreams: upstreams.size, tools: tools.size, agents: agents.size, people: people.size };
    out.json({ good: true, dir, files, ...counts, tests: loaded.tests.length, version, faults: [], warnings });
    return 0;
  },
};
