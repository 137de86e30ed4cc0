import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase } from '../support/database.ts';
import { AGENT_KEY, type Gateway, OTHER_AGENT_KEY, PEOPLE_YAML, sha256Hex, startGateway } from '../support/gateway.ts';

export interface McpGatewayFixture {
  readonly gateway: Gateway;
  readonly upstream: TestUpstream;
  end(): Promise<void>;
}

/** A gateway with HTTP tools of every kind behind it, to be asked over MCP. */
export async function startMcpGatewayFixture(more = ''): Promise<McpGatewayFixture> {
  const [upstream, database] = await Promise.all([startUpstream(), createTestDatabase()]);
  const gateway = await startGateway({
    databaseUrl: database.url,
    policies: { 'front.yaml': renderPolicies(upstream.url), ...(more === '' ? {} : { 'more.yaml': more }) },
  });
  const end = async () => {
    await gateway.dispose();
    await database.drop();
    await upstream.stop();
  };
  return { gateway, upstream, end };
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
    keys: ["sha256:${sha256Hex(AGENT_KEY)}"]
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
    keys: ["sha256:${sha256Hex(OTHER_AGENT_KEY)}"]
    rules: [{ allow: world.read }, { allow: ghost.* }]
${PEOPLE_YAML}`;
}
