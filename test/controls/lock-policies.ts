// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';

/** Two tools of one upstream may not have the same request, so each tool has its own upstream at the same URL. */
const UPSTREAM_NAMES = [
  ...['world', 'charge', 'look', 'sweep', 'survey', 'many', 'exact', 'free', 'secret'],
  ...['reserve', 'cancel', 'once', 'pin', 'pinned', 'approved'],
];

/** Tools that cover every way to declare locks, against the effect-counting upstream. */
export function buildLockPolicies(url: string, tuning: { timeout?: string } = {}): Record<string, string> {
  const input =
    'input: { type: object, properties: { id: { type: string }, card: { type: string }, cards: { type: array, items: { type: string } } }, required: [id] }';
  const upstream = (name: string) =>
    `  ${name}: { adapter: http, url: "${url}", allowPrivate: true, timeout: ${tuning.timeout ?? '20s'}, concurrency: 256, breaker: { minimum: 1000 } }`;
  const keyed = (name: string, locks: string) => `
  world.${name}:
    upstream: ${name}
    ${input}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    retry: { attempts: 4, base: 50ms, max: 200ms, within: 1h }
    locks: ${locks}`;
  return {
    'locks.yaml': `
upstreams:
${UPSTREAM_NAMES.map(upstream).join('\n')}
tools:
${keyed('charge', '["card/${args.card}"]')}
${keyed('look', '[{ key: "card/${args.card}", mode: shared }]')}
${keyed('sweep', '["card/*"]')}
${keyed('survey', '[{ key: "card/*", mode: shared }]')}
${keyed('many', '["card/${args.cards}"]')}
${keyed('exact', '["${args.cards}"]')}
${keyed('free', '[]')}
${keyed('secret', '["card/${args.card}"]')}
    redact: [args.card]
${keyed('reserve', '[{ key: "card/${args.card}", for: saga }]')}
    undo: { kind: compensable, tool: world.cancel, args: { id: "undo-\${args.id}", card: "\${args.card}" } }
${keyed('cancel', '["card/${args.card}"]')}
    undo: { kind: irreversible }
${keyed('once', '["card/${args.card}"]')}
    undo: { kind: compensable, tool: world.cancel, args: { id: "undo-\${args.id}", card: "\${args.card}" } }
${keyed('pinned', '[{ key: "card/${args.card}", for: run }]')}
${keyed('pin', '[{ key: "card/${args.card}", for: run }]')}
  world.mail:
    upstream: world
    ${input}
    request: { method: POST, path: /none/mail, body: "\${args}" }
    once: { by: none }
    locks: ["card/\${args.card}"]
${keyed('approved', '["card/${args.card}"]')}
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.approved
        approve: {}
      - allow: world.pinned
        approve: {}
      - allow: world.*
        approve: never
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: world.*
        approve: never
${PEOPLE_YAML}`,
  };
}
