import { AGENT_KEY, keysYaml, PEOPLE_YAML } from '../support/gateway.ts';

export const APPROVER_KEY = 'test-approver-key';

/** One tool for each action of a person in the console, against the upstream that counts effects. */
export function buildConsolePolicies(url: string): Record<string, string> {
  const input = 'input: { type: object }';
  const post = (path: string) => `request: { method: POST, path: ${path}, body: "\${args}" }`;
  const keyed = 'once: { by: key, header: Idempotency-Key }';
  return {
    'console.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:
  world.charge:
    upstream: world
    ${input}
    ${post('/keyed/charge')}
    ${keyed}
    undo: { kind: compensable, tool: world.refund, args: { id: "\${args.id}", effect: "\${result.id}" } }
  world.refund:
    upstream: world
    ${input}
    ${post('/keyed/refund')}
    ${keyed}
    undo: { kind: irreversible }
  world.mail:
    upstream: world
    ${input}
    ${post('/probed/orders')}
    undo: { kind: irreversible }
  world.note:
    upstream: world
    ${input}
    ${post('/none/mail')}
    undo: { kind: irreversible }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.mail
      - allow: world.*
        approve: never
${PEOPLE_YAML}  ada: { ${keysYaml(APPROVER_KEY)}, roles: [approver] }
`,
  };
}
