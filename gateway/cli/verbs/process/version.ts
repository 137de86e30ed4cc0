import { packageVersion } from '../../package-root.ts';
import type { Verb } from '../../verb.ts';

export const versionVerb: Verb = {
  name: 'version',
  summary: 'the version of this build',
  run: async ({ out }) => {
    const version = packageVersion();
    out.json({ version, node: process.versions.node });
    out.line(`oncegate ${version}`);
    return 0;
  },
};
