import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

/** A gateway with HTTP tools of every kind, for tests that call it over MCP. `more` renders another policy file. */
export function useMcpGateway(more?: () => string) {
  return useGateway({
    policies: (url) => ({
      'front.yaml': renderPolicies(url),
      ...(more === undefined ? {} : { 'more.yaml': more() }),
    }),
  });
}

function renderPolicies(url: string): string {
  const input = 'input: { type: object, properties: { id: { type: string }, n: { type: integer } }, required: [id] }';
  const output = 'output: { type: object, properties: { id: { type: string }, t: { type: string } }, required: [id] }';
  return `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
  orders: { adapter: http, url: "${url}", allowPrivate: true }
  slow: { adapter: http, url: "${url}", allowPrivate: true }
  sick: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.charge:
    upstream: world
    description: Charge a card.
    ${input}
    ${output}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: compensable, tool: world.refund, args: { id: "\${args.id}" } }
    retry: { attempts: 2, base: 20ms, max: 50ms, within: 1s }
  world.refund:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/refund, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.by_order:
    upstream: orders
    ${input}
    key: "\${args.id}"
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.mail: { upstream: world, ${input}, request: { method: POST, path: /none/mail, body: "\${args}" }, once: { by: none } }
  world.held: { upstream: slow, ${input}, ${output}, request: { method: POST, path: /none/mail, body: "\${args}" } }
  world.read: { upstream: world, effect: read, ${input}, ${output}, request: { method: GET, path: "/read/items/\${args.id}" } }
  world.secret: { upstream: world, effect: read, ${input}, request: { method: GET, path: "/read/secrets/\${args.id}" } }
  sick.pay: { upstream: sick, ${input}, request: { method: POST, path: /keyed/charge, body: "\${args}" }, once: { by: key, header: Idempotency-Key } }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.held
      - deny: world.secret
      - deny: world.charge
        when: has(args.n) && args.n > 1000
      - allow: world.*
        approve: never
      - allow: sick.*
        approve: never
      - allow: oncegate.*
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules: [{ allow: world.read }, { allow: ghost.* }]
${PEOPLE_YAML}`;
}
