import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from './keys.ts';

/** Of an agent that may not close tickets. */
export const STRANGER_KEY = 'test-stranger-key';
/** Of an agent whose tickets are closed only after a person approves. */
export const CAREFUL_KEY = 'test-careful-key';
/** Of an agent whose only voter never approves. */
export const OUTVOTED_KEY = 'test-outvoted-key';
/** Of an agent that may close any ticket. */
export const TWIN_KEY = 'test-twin-key';

/** Tools with shared keys on the counting upstream. */
export function buildSharedKeyPolicies(url: string, scope = 'shared'): Record<string, string> {
  const input = 'input: { type: object, properties: { id: { type: string }, note: { type: string } }, required: [id] }';
  const retry = 'retry: { attempts: 4, base: 20ms, max: 200ms, within: 1h }';
  const keyed = 'once: { by: key, header: Idempotency-Key }';
  const shared = `key: { of: "\${args.id}", scope: ${scope} }`;
  return {
    'shared.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
  tags: { adapter: http, url: "${url}", allowPrivate: true }
  notes: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  tickets.close:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    ${keyed}
    ${retry}
    ${shared}
    locks: ["ticket/\${args.id}"]
    undo: { kind: compensable, tool: tickets.reopen, args: { id: "reopen-\${args.id}" } }
  tickets.reopen: { upstream: world, ${input}, request: { method: POST, path: /keyed/refund, body: "\${args}" }, ${keyed} }
  tickets.mail: { upstream: world, ${input}, request: { method: POST, path: /none/mail, body: "\${args}" }, ${shared} }
  tickets.tag: { upstream: tags, ${input}, request: { method: POST, path: /keyed/charge, body: "\${args}" }, ${keyed} }
  tickets.note:
    upstream: notes
    input: { type: object, properties: { id: { type: string }, order: { type: string } }, required: [id] }
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    ${keyed}
    key: { of: "\${args.order}", scope: shared }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules: [{ allow: tickets.*, approve: never }, { allow: "oncegate.*" }]
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules: [{ allow: tickets.close, rate: 1/h }, { allow: tickets.*, approve: never }, { allow: "oncegate.*" }]
  stranger:
    ${keysYaml(STRANGER_KEY)}
    rules: [{ allow: tickets.tag }]
  twin:
    ${keysYaml(TWIN_KEY)}
    rules: [{ allow: tickets.close }]
  outvoted:
    ${keysYaml(OUTVOTED_KEY)}
    rules: [{ allow: tickets.close, voters: { of: [{ name: nobody, when: false }] } }]
  careful:
    ${keysYaml(CAREFUL_KEY)}
    rules: [{ allow: tickets.*, approve: { quorum: 1 } }]
${PEOPLE_YAML}`,
  };
}
