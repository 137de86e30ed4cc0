import { readPackageVersion } from '../../package-root.ts';
import type { Verb } from '../../verb.ts';

export const versionVerb: Verb = {
  name: 'version',
  summary: 'print the version',
  run: async ({ out }) => {
    const version = readPackageVersion();
    out.printJson({ version, node: process.versions.node });
    out.printLine(`oncegate ${version}`);
    return 0;
  },
};
