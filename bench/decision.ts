import { decideCall } from '../gateway/policy/decide.ts';
import { compilePolicies } from '../gateway/policy/load-policies.ts';

/** 200 rules, all of which are evaluated before the last one allows the call. */
export function renderManyRules(tool: string): string {
  const denials = Array.from(
    { length: 199 },
    (_, i) => `      - deny: "*.charge"\n        when: args.amount == ${1_000_000 + i}`,
  );
  return `${denials.join('\n')}\n      - allow: ${tool}\n        when: args.amount <= 50000`;
}

/** The time of one decision for an agent with 200 rules, in microseconds. */
export function measureDecisionMicros(rounds: number): number {
  const text = `
upstreams: { u: { adapter: http, url: "http://127.0.0.1:1", allowPrivate: true } }
tools:
  u.charge: { upstream: u, input: { type: object, properties: { amount: { type: integer } } }, once: { by: idempotent } }
agents:
  bot:
    keys: []
    rules:
${renderManyRules('u.charge')}
`;
  const loaded = compilePolicies([{ name: 'bench.yaml', file: 'bench.yaml', bytes: Buffer.from(text) }], {});
  if (!loaded.ok) throw new Error(loaded.faults.map((fault) => fault.message).join('\n'));
  const agent = loaded.policies.agents.get('bot');
  if (agent === undefined) throw new Error('The policies have no agent bot.');
  const call = { args: { amount: 100 }, saga: null, run: null, now: Date.now() };
  const round = () => {
    const started = performance.now();
    for (let i = 0; i < rounds; i += 1) {
      if (!decideCall(loaded.policies, agent, 'u.charge', call).allowed) throw new Error('The call was denied.');
    }
    return ((performance.now() - started) * 1000) / rounds;
  };
  round();
  return Math.min(round(), round(), round());
}
