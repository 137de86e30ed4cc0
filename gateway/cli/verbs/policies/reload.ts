import { askGateway } from '../../ask-gateway.ts';
import type { Verb } from '../../verb.ts';
import { member } from '../calls/call-text.ts';

export const reloadVerb: Verb = {
  name: 'reload',
  summary: 'let the gateway read its policies again, now',
  run: async ({ io, out }) => {
    const answer = await askGateway(io, '/admin/policies/reload', {
      method: 'POST',
      advice: ({ code }) =>
        code === 'conflict' ? '"oncegate check" finds such faults before the gateway does.' : undefined,
    });
    out.json(answer);
    const version = member(answer, 'version');
    out.line(out.terminal ? `the policies in force are version ${version}` : version);
    return 0;
  },
};
