import { type Gateway, makeGateway, sha256Hex } from '../test/support/gateway.ts';
import { renderManyRules } from './decision.ts';
import type { RequestSpec } from './load.ts';

export const BENCH_AGENT_KEY = 'bench-key';
export const MANY_RULES_AGENT_KEY = 'bench-key-with-rules';

/** Makes the gateway of the benchmark; the caller starts it. */
export function makeBenchGateway(upstream: string, mcp: string, databaseUrl: string): Promise<Gateway> {
  // Set here, because the gateways of the tests ignore ONCEGATE_WORKERS of the environment.
  const env = { ONCEGATE_DEMO: '0', ONCEGATE_WORKERS: process.env['ONCEGATE_WORKERS'] ?? '1' };
  return makeGateway({ policies: { 'bench.yaml': renderPolicies(upstream, mcp) }, databaseUrl, env });
}

/** The HTTP request of an agent. Its idempotency key is the name of the run and the number of the call. */
export const buildHttpCall =
  (agentKey: string, body: string, saga?: (i: number) => string) =>
  (run: string) =>
  (i: number): RequestSpec => ({
    path: saga === undefined ? '/v1/tools/pay.charge' : '/v1/tools/pay.step',
    headers: {
      authorization: `Bearer ${agentKey}`,
      'idempotency-key': `${run}-${i}`,
      ...(saga === undefined ? {} : { 'oncegate-saga': saga(i) }),
    },
    body,
  });

export async function openSagas(gateway: Gateway, count: number): Promise<string[]> {
  const sagas: string[] = [];
  const worker = async () => {
    for (let left = count - sagas.length; left > 0; left = count - sagas.length) {
      const { body } = await gateway.request('POST', '/v1/sagas', {
        key: BENCH_AGENT_KEY,
        body: '{}',
        headers: { 'content-type': 'application/json' },
      });
      sagas.push(body.saga);
    }
  };
  await Promise.all(Array.from({ length: 8 }, worker));
  return sagas.slice(0, count);
}

function renderPolicies(upstream: string, mcp: string): string {
  return `
upstreams:
  pay: { adapter: http, url: "${upstream}", allowPrivate: true, concurrency: 64 }
  bank: { adapter: mcp, url: "${mcp}", allowPrivate: true, concurrency: 64, import: "*" }
tools:
  bank.charge: { upstream: bank, once: { by: key, field: key } }
  pay.charge:
    upstream: pay
    input: { type: object, properties: { amount: { type: integer } } }
    request: { method: POST, path: /charges, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  pay.step:
    upstream: pay
    input: { type: object, properties: { amount: { type: integer } } }
    request: { method: POST, path: /steps, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: compensable, tool: pay.refund, args: { charge: "\${result.id}" } }
  pay.refund:
    upstream: pay
    input: { type: object }
    request: { method: POST, path: /refunds, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
agents:
  bench: { keys: ["sha256:${sha256Hex(BENCH_AGENT_KEY)}"], rules: [{ allow: pay.* }, { allow: bank.* }] }
  ruled:
    keys: ["sha256:${sha256Hex(MANY_RULES_AGENT_KEY)}"]
    rules:
${renderManyRules('pay.charge')}
`;
}
