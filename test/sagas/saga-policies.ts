import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';

/** Tools at the counting upstream that are undone in different ways. */
export function buildSagaPolicies(url: string, options: { retry?: string; timeout?: string; rules?: string } = {}) {
  const retry = options.retry ?? '{ attempts: 5, base: 20ms, max: 200ms, within: 1h }';
  const input = 'input: { type: object, properties: { id: { type: string } }, required: [id] }';
  const buildPost = (path: string) => `request: { method: POST, path: ${path}, body: "\${args}" }`;
  const onceByKey = 'once: { by: key, header: Idempotency-Key }';
  return {
    'sagas.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: ${options.timeout ?? '2s'}, breaker: { minimum: 1000 } }
  wide: { adapter: http, url: "${url}", allowPrivate: true, timeout: ${options.timeout ?? '2s'}, breaker: { minimum: 1000 } }
  narrow: { adapter: http, url: "${url}", allowPrivate: true, timeout: 5s, concurrency: 1, breaker: { minimum: 1000 } }
tools:
  narrow.charge:
    upstream: narrow
    ${input}
    ${buildPost('/keyed/charge')}
    ${onceByKey}
    retry: ${retry}
    undo: { kind: compensable, tool: world.refund, args: { id: "\${args.id}", effect: "\${result.id}" } }
  wide.reserve:
    upstream: wide
    ${input}
    ${buildPost('/keyed/charge')}
    ${onceByKey}
    retry: ${retry}
    undo: { kind: compensable, tool: wide.cancel, args: { id: "undo-\${args.id}" } }
  wide.cancel:
    upstream: wide
    ${input}
    ${buildPost('/probed/orders')}
    once: { by: probe, probe: { tool: world.find, args: { id: "\${args.id}" }, applied: "result.found" }, settles: 300ms }
    retry: ${retry}
    undo: { kind: irreversible }
  wide.post:
    upstream: wide
    ${input}
    ${buildPost('/none/mail')}
    once: { by: none }
    undo: { kind: compensable, tool: world.refund, args: { id: "\${args.id}", effect: "\${result.id}" } }
  world.charge:
    upstream: world
    ${input}
    ${buildPost('/keyed/charge')}
    ${onceByKey}
    retry: ${retry}
    undo: { kind: compensable, tool: world.refund, args: { id: "\${args.id}", effect: "\${result.id}" } }
  world.refund:
    upstream: world
    input: { type: object, properties: { id: { type: string }, effect: { type: string } }, required: [id, effect] }
    ${buildPost('/keyed/refund')}
    ${onceByKey}
    retry: ${retry}
    undo: { kind: irreversible }
  world.order:
    upstream: world
    ${input}
    ${buildPost('/probed/orders')}
    once: { by: probe, probe: { tool: world.find, args: { id: "\${args.id}" }, applied: "result.found" }, settles: 300ms }
    retry: ${retry}
    undo: { kind: compensable, tool: world.refund, args: { id: "\${args.id}", effect: "\${has(result.order.id) ? result.order.id : result.id}" } }
  world.find:
    upstream: world
    effect: read
    ${input}
    request: { method: GET, path: /probed/orders, query: { id: "\${args.id}" } }
  world.write:
    upstream: world
    input: { type: object, properties: { id: { type: string }, text: { type: string } }, required: [id, text] }
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: { text: "\${args.text}" } }
    once: { by: idempotent }
    retry: ${retry}
    observe: { tool: world.look, args: { id: "\${args.id}" }, satisfied: "observed != null && observed.object.text == args.text" }
    undo: { kind: reversible, tool: world.restore, args: { id: "\${args.id}", text: "\${before == null ? '' : before.object.text}" } }
  world.restore:
    upstream: world
    input: { type: object, properties: { id: { type: string }, text: { type: string } }, required: [id, text] }
    request: { method: PUT, path: "/restored/\${args.id}", body: { text: "\${args.text}" } }
    once: { by: idempotent }
    retry: ${retry}
  world.look:
    upstream: world
    effect: read
    ${input}
    request: { method: GET, path: "/idempotent/objects/\${args.id}" }
    retry: ${retry}
  world.mail:
    upstream: world
    ${input}
    ${buildPost('/none/mail')}
    once: { by: none }
    undo: { kind: irreversible }
  world.plain:
    upstream: world
    ${input}
    ${buildPost('/keyed-field/charge')}
    once: { by: key, field: meta.key }
    retry: ${retry}
  world.approved:
    upstream: world
    ${input}
    ${buildPost('/echo')}
    once: { by: idempotent }
    undo: { kind: none }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
${options.rules ?? ''}
      - allow: world.approved
        approve: {}
      - deny: world.refund
        when: args.effect == "forbidden"
      - allow: world.*
        approve: never
      - allow: wide.*
        approve: never
      - allow: narrow.*
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: world.charge
${PEOPLE_YAML}`,
  };
}
