import { createHash, randomBytes } from 'node:crypto';
import type { Verb } from '../../verb.ts';

export const keyNewVerb: Verb = {
  name: 'key new',
  summary: 'a new bearer key, and its line for the YAML',
  run: async ({ out }) => {
    const key = `og_${randomBytes(32).toString('base64url')}`;
    const digest = `sha256:${createHash('sha256').update(key).digest('hex')}`;
    out.line(key);
    out.line(`keys: ["${digest}"]`);
    out.note(
      'Give the first line to the agent or person: it is stored nowhere and not shown again.\n' +
        'Put the second one below their name, under agents or people of a policy file.',
    );
    out.json({ key, digest });
    return 0;
  },
};
