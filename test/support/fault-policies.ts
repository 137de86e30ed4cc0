import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from './keys.ts';

export interface FaultPolicyTuning {
  readonly retry?: string;
  readonly settles?: string;
  readonly lifetime?: string;
  readonly timeout?: string;
  /** Rules of the agent `tester` that come before the usual ones. */
  readonly rules?: readonly string[];
}

/** Tools of every kind against the counting upstream (test/faults/upstream.mjs). */
export function buildFaultPolicies(upstreamUrl: string, tuning: FaultPolicyTuning = {}): Record<string, string> {
  const retry = tuning.retry ?? '{ attempts: 4, base: 50ms, max: 500ms, within: 1h }';
  const timeout = tuning.timeout ?? '2s';
  const input = 'input: { type: object, properties: { id: { type: string }, n: { type: integer } }, required: [id] }';
  return {
    'faults.yaml': `
upstreams:
  world: { adapter: http, url: "${upstreamUrl}", allowPrivate: true, timeout: ${timeout}, breaker: { minimum: 1000 } }
tools:
  world.keyed:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key, lifetime: ${tuning.lifetime ?? '24h'} }
    retry: ${retry}
  world.keyed_field:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed-field/charge, body: "\${args}" }
    once: { by: key, field: meta.key }
    retry: ${retry}
  world.put:
    upstream: world
    ${input}
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }
    once: { by: idempotent }
    retry: ${retry}
  world.delete:
    upstream: world
    ${input}
    request: { method: DELETE, path: "/idempotent/objects/\${args.id}" }
    once: { by: idempotent }
    retry: ${retry}
  world.probed:
    upstream: world
    ${input}
    request: { method: POST, path: /probed/orders, body: "\${args}" }
    once: { by: probe, probe: { tool: world.find, args: { id: "\${args.id}" }, applied: "result.found" }, settles: ${tuning.settles ?? '300ms'} }
    retry: ${retry}
  world.find:
    upstream: world
    effect: read
    ${input}
    request: { method: GET, path: /probed/orders, query: { id: "\${args.id}" } }
  world.none:
    upstream: world
    ${input}
    request: { method: POST, path: /none/mail, body: "\${args}" }
    once: { by: none }
    retry: ${retry}
  world.held:
    upstream: world
    ${input}
    request: { method: POST, path: /none/mail2, body: "\${args}" }
  world.delayed:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/refund, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.read:
    upstream: world
    effect: read
    ${input}
    request: { method: GET, path: "/read/items/\${args.id}" }
    retry: ${retry}
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
${(tuning.rules ?? []).map((rule) => `      - ${rule}\n`).join('')}      - allow: world.held
      - allow: world.delayed
        delay: 3s
      - allow: world.*
        approve: never
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: world.keyed
${PEOPLE_YAML}`,
  };
}
