// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../../support/gateway.ts';

/** Tools with locks, one of them only for runs; agents with keys and with tokens. */
export function buildUncooperativePolicies(url: string, issuerUrl: string): string {
  const tool = (name: string, lock: string) => `
  world.${name}:
    upstream: ${name}
    input: { type: object, properties: { id: { type: string }, card: { type: string }, keys: { type: array, items: { type: string } } }, required: [id], additionalProperties: false }
    request: { method: POST, path: /keyed/charge, body: { id: "\${args.id}" } }
    once: { by: key, header: Idempotency-Key }
    locks: ["${lock}"]
    repeats: { policy: run }`;
  return `
upstreams:
${['charge', 'many', 'in_run'].map((name) => `  ${name}: { adapter: http, url: "${url}", allowPrivate: true, breaker: { minimum: 100000 } }`).join('\n')}
tools:
${tool('charge', 'card/${args.card}')}
${tool('many', 'key/${args.keys}')}
${tool('in_run', 'card/${args.card}')}
agents:
  lazy:
    ${keysYaml(AGENT_KEY)}
    rules:
      # A call without a run is refused, because it could not be fenced.
      - { allow: world.in_run, when: run != null }
      - { allow: world.charge }
      - { allow: world.many }
  other: { ${keysYaml(OTHER_AGENT_KEY)}, rules: [{ allow: world.* }] }
  token: { jwt: { issuer: "${issuerUrl}", audience: gate, claims: { sub: biller }, allowPrivate: true }, rules: [{ allow: world.charge }] }
${PEOPLE_YAML}`;
}
