import { requestGateway } from '../../gateway-client.ts';
import { textField } from '../../json-fields.ts';
import type { Verb } from '../../verb.ts';

export const reloadVerb: Verb = {
  name: 'reload',
  summary: 'make the gateway reload its policies now',
  run: async ({ io, out }) => {
    const answer = await requestGateway(io, '/admin/policies/reload', {
      method: 'POST',
      advice: ({ code }) => (code === 'conflict' ? '"oncegate check" finds such faults before you reload.' : undefined),
    });
    out.printJson(answer);
    const version = textField(answer, 'version');
    out.printLine(out.isTerminal ? `Policy version ${version} is in force.` : version);
    return 0;
  },
};
