import { createHash } from 'node:crypto';

export const AGENT_KEY = 'test-agent-key';
export const OTHER_AGENT_KEY = 'test-other-agent-key';
export const ADMIN_KEY = 'test-admin-key';
export const VIEWER_KEY = 'test-viewer-key';

export const sha256Hex = (text: string) => createHash('sha256').update(text).digest('hex');

/** The `keys` of an agent or a person in a policy: hashed, as policies hold them. */
export const keysYaml = (key: string) => `keys: ["sha256:${sha256Hex(key)}"]`;

/** The people of most tests: an admin and a viewer. */
export const PEOPLE_YAML = `
people:
  root: { ${keysYaml(ADMIN_KEY)}, roles: [admin] }
  watcher: { ${keysYaml(VIEWER_KEY)}, roles: [viewer] }
`;

/** The end of most policies: the agent `tester` with these rules, and the people of most tests. */
export const testerYaml = (rules: string) => `agents:
  tester: { ${keysYaml(AGENT_KEY)}, rules: ${rules} }
${PEOPLE_YAML}`;
