import { paint } from '../../output.ts';
import { readPolicyDirectory } from '../../policy-directory.ts';
import { formatCount } from '../../quantities.ts';
import type { Verb } from '../../verb.ts';

export const checkVerb: Verb = {
  name: 'check',
  summary: 'check the policies, and print every fault with its line',
  operands: [{ name: 'dir', optional: true }],
  run: async (invocation) => {
    const { out } = invocation;
    const { dir, files, loaded } = await readPolicyDirectory(invocation);
    const { formatFault } = await import('../../../policy/load-policies.ts');
    const { warnings } = loaded;
    for (const warning of warnings)
      out.printLine(paint('yellow', formatFault({ ...warning, message: `warning: ${warning.message}` })));
    const fileCount = formatCount(files, 'file');
    if (!loaded.ok) {
      const { faults } = loaded;
      for (const fault of faults) out.printLine(paint('red', formatFault(fault)));
      out.printLine(`${fileCount}: ${formatCount(faults.length, 'fault')}`);
      out.printJson({ good: false, dir, files, faults, warnings });
      return 1;
    }
    const { version, upstreams, tools, agents, people } = loaded.policies;
    if (files === 0) out.printNote(`There is no *.yaml file below ${dir}, so no agent may do anything.`);
    out.printLine(
      `${fileCount}, ${formatCount(tools.size, 'tool')}, ${formatCount(agents.size, 'agent')}: `,
      paint('green', 'good'),
    );
    const counts = { upstreams: upstreams.size, tools: tools.size, agents: agents.size, people: people.size };
    out.printJson({ good: true, dir, files, ...counts, tests: loaded.tests.length, version, faults: [], warnings });
    return 0;
  },
};
