// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { AGENT_KEY, keysYaml, PEOPLE_YAML } from '../../support/gateway.ts';
import type { DnsAnswers } from './dns-server.ts';

/** Ways to write an address of this machine or of its private network. */
export const PRIVATE_HOSTS = [
  '127.0.0.1',
  '127.1',
  '127.0.1',
  '127.0.0.2',
  '127.255.255.254',
  '2130706433',
  '0x7f000001',
  '0x7f.1',
  '0177.0.0.1',
  '017700000001',
  '0',
  '0.0.0.0',
  '127.0.0.1.',
  '%31%32%37.0.0.1',
  '\uff11\uff12\uff17.0.0.1',
  '127\u30020\u30020\u30021',
  'localhost',
  'LOCALHOST',
  '\uff4cocalhost',
  '[::1]',
  '[0:0:0:0:0:0:0:1]',
  '[::]',
  '[::ffff:127.0.0.1]',
  '[::ffff:7f00:1]',
  '[::127.0.0.1]',
  '[64:ff9b::127.0.0.1]',
  '[2002:7f00:1::]',
  '[2001:0:7f00:1::]',
  '[fe80::1]',
  '[fd00:ec2::254]',
  '169.254.169.254',
  '100.100.100.200',
  '168.63.129.16',
  '255.255.255.255',
] as const;

/** A global address that nobody owns, so that packets to it go nowhere. */
const UNROUTABLE_ADDRESS = '2d00::1';

/** The host name of a control upstream, which may reach private addresses. */
export const CONTROL_NAME = 'control.example';

/** Host names of an attacker, and the addresses that they resolve to. */
export const HOSTILE_NAMES: Readonly<Record<string, DnsAnswers>> = {
  'loopback.example': [['127.0.0.1']],
  'loopback2.example': [['127.0.0.2']],
  'loopback6.example': [['::1']],
  'mapped.example': [['::ffff:127.0.0.1']],
  'nat64.example': [['64:ff9b::7f00:1']],
  'zero.example': [['0.0.0.0']],
  'metadata.example': [['169.254.169.254']],
  'mixed.example': [['127.0.0.1', UNROUTABLE_ADDRESS]],
  'mixed-v6.example': [[UNROUTABLE_ADDRESS, '::1']],
  'rebinding.example': [[UNROUTABLE_ADDRESS], ['127.0.0.1']],
  'rebinding-later.example': [[UNROUTABLE_ADDRESS], ['127.0.0.1']],
};

const toIdentifier = (name: string) => name.replaceAll(/[^a-z0-9]/g, '_');
export const toNameTool = (name: string) => `names.${toIdentifier(name)}`;
export const toPrivateHostTool = (index: number) => `inside.n${index}`;

const renderOpenApi = (forbiddenUrl: string) => `openapi: 3.1.0
info: { title: Elsewhere, version: "1" }
servers: [{ url: "${forbiddenUrl}" }]
paths:
  /documented/{id}:
    servers: [{ url: "${forbiddenUrl}" }]
    get:
      operationId: documented
      servers: [{ url: "${forbiddenUrl}" }]
      externalDocs: { url: "${forbiddenUrl}" }
      parameters:
        - { name: id, in: path, required: true, schema: { type: string } }
        - { name: Host, in: header, schema: { type: string } }
        - { name: X-HTTP-Method-Override, in: header, schema: { type: string } }
        - { name: X-Original-URL, in: header, schema: { type: string } }
        - { name: Oncegate-Lock-Token, in: header, schema: { type: string } }
      responses: { 200: { description: ok, links: { next: { operationRef: "${forbiddenUrl}" } } } }
`;

/** `world` may be contacted; the listener at `forbiddenPort` may not. */
export interface AttackEndpoints {
  readonly world: string;
  readonly forbiddenPort: number;
  readonly credential: string;
}

export function buildAdversarialPolicies({
  world,
  forbiddenPort,
  credential,
}: AttackEndpoints): Record<string, string> {
  // The first connection of a rebinding name may lead nowhere, so it has a short timeout.
  const renderUpstream = (name: string, host: string, more = '') =>
    `  ${name}: { adapter: http, url: "http://${host}:${forbiddenPort}", timeout: ${host.startsWith('rebinding') ? '2s' : '10s'}, breaker: { minimum: 100000 }${more} }`;
  const renderReadTool = (tool: string, upstream: string) =>
    `  ${tool}: { upstream: ${upstream}, effect: read, request: { method: GET, path: /x }, retry: { attempts: 1 } }`;
  return {
    'inside.yaml': `
upstreams:
${PRIVATE_HOSTS.map((host, i) => renderUpstream(`inside${i}`, host)).join('\n')}
${Object.keys(HOSTILE_NAMES)
  .map((name) => renderUpstream(toIdentifier(name), name))
  .join('\n')}
${['127.0.0.1', '127.0.0.2', '[::1]', CONTROL_NAME].map((host, i) => renderUpstream(`control${i}`, host, ', allowPrivate: true')).join('\n')}
tools:
${PRIVATE_HOSTS.map((_, i) => renderReadTool(toPrivateHostTool(i), `inside${i}`)).join('\n')}
${Object.keys(HOSTILE_NAMES)
  .filter((name) => name !== 'rebinding.example')
  .map((name) => renderReadTool(toNameTool(name), toIdentifier(name)))
  .join('\n')}
${[0, 1, 2, 3].map((i) => renderReadTool(`control.n${i}`, `control${i}`)).join('\n')}
  # Each attempt opens its own connection, and so looks the name up again.
  ${toNameTool('rebinding.example')}:
    upstream: ${toIdentifier('rebinding.example')}
    request: { method: POST, path: /x }
    retry: { attempts: 3, base: 1ms, max: 1ms }
`,
    'world.openapi.yaml': renderOpenApi(`http://127.0.0.1:${forbiddenPort}`),
    'world.yaml': `
upstreams:
  world: { adapter: http, url: "http://${world}/api", allowPrivate: true, headers: { authorization: "${credential}" }, timeout: 3s, breaker: { minimum: 100000 }, import: world.openapi.yaml }
  server: { adapter: mcp, url: "http://${world}/mcp", allowPrivate: true, import: "*", breaker: { minimum: 100000 } }
  away: { adapter: mcp, url: "http://${world}/mcp-away", allowPrivate: true, breaker: { minimum: 100000 } }
tools:
  away.fetch: { upstream: away, effect: read, retry: { attempts: 1 } }
  world.item:
    upstream: world
    effect: read
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: GET, path: "/items/\${args.id}" }
    retry: { attempts: 1 }
  world.search:
    upstream: world
    effect: read
    input: { type: object, properties: { q: {}, label: { type: string } }, additionalProperties: false }
    request: { method: GET, path: /search, query: { q: "\${has(args.q) ? args.q : null}" }, headers: { x-label: "\${has(args.label) ? args.label : null}" } }
    retry: { attempts: 1 }
  world.charge:
    upstream: world
    input: { type: object, properties: { amount: { type: integer } }, required: [amount], additionalProperties: false }
    request: { method: POST, path: /charges, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    repeats: { policy: run }
  world.redirect:
    upstream: world
    effect: read
    input: { type: object, properties: { way: { type: string } }, required: [way] }
    request: { method: GET, path: "/redirect/\${args.way}" }
    retry: { attempts: 1 }
  world.write_redirect:
    upstream: world
    input: { type: object, properties: { way: { type: string } }, required: [way] }
    request: { method: POST, path: "/redirect/\${args.way}" }
    once: { by: idempotent }
    retry: { attempts: 1 }
  world.forbidden: { upstream: world, request: { method: DELETE, path: "/admin" }, once: { by: idempotent } }
agents:
  clever:
    ${keysYaml(AGENT_KEY)}
    rules:
      - deny: world.forbidden
      - allow: "*"
        approve: never
  bearer: { jwt: { issuer: "http://${world}/issuer", audience: gate, allowPrivate: true }, rules: [{ allow: world.item }] }
${PEOPLE_YAML}`,
  };
}
