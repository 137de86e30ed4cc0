import { createHash, randomBytes } from 'node:crypto';
import type { Verb } from '../../verb.ts';

export const keyNewVerb: Verb = {
  name: 'key new',
  summary: 'create a bearer key, and its line for a policy file',
  run: async ({ out }) => {
    const key = `og_${randomBytes(32).toString('base64url')}`;
    const digest = `sha256:${createHash('sha256').update(key).digest('hex')}`;
    out.printLine(key);
    out.printLine(`keys: ["${digest}"]`);
    out.printNote(
      'Give the first line to the agent or person. It is stored nowhere and not shown again.\n' +
        'Put the second line below their name, under "agents" or "people" of a policy file.',
    );
    out.printJson({ key, digest });
    return 0;
  },
};
