import type { JsonObject } from '../../gateway/domain/json.ts';
import type { Agent, Policies } from '../../gateway/domain/policy.ts';
import { compilePolicies, formatFault, type LoadResult } from '../../gateway/policy/load-policies.ts';

export const HEX_A = 'a'.repeat(64);
export const HEX_B = 'b'.repeat(64);

/** The example policy of the docs, completed with the undo tool and two key digests. */
export const EXAMPLE_POLICY = `upstreams:
  payments:
    adapter: http                      # http | mcp
    url: https://api.payments.example/v1
    headers: { authorization: "Bearer \${env.PAYMENTS_TOKEN}" }   # credentials: here only, never visible to an agent
    timeout: 10s
    concurrency: 32
    breaker: { threshold: 50%, minimum: 10, window: 10s, cooldown: 15s }
    allowPrivate: true                 # loopback and private addresses are refused unless this says so
  crm:
    adapter: mcp
    url: https://crm.example/mcp       # or: command: [node, server.mjs]
    import: "*"                        # offer its tools as crm.<name>; contracts below override what it says of itself

tools:
  payments.charge:
    upstream: payments
    description: Charge a card.
    input: { type: object, properties: { amount: { type: integer }, card: { type: string } }, required: [amount, card] }
    effect: write                      # read | write (default write)
    request: { method: POST, path: /charges, query: {}, headers: {}, body: "\${args}" }   # path: /charges/\${args.id}
    once: { by: key, header: Idempotency-Key, lifetime: 24h }    # how a repeat is harmless, see below
    key: "\${args.order_id}"            # optional business key for calls that bring none
    undo: { kind: compensable, tool: payments.refund, args: { charge: "\${result.id}", amount: "\${args.amount}" } }
    locks: ["card/\${args.card}"]
    timeout: 5s
    retry: { attempts: 5, base: 200ms, max: 30s, within: 1h }
    noEffect: [400, 401, 403, 404, 422, 429]   # answers that prove nothing happened (this is the default list)
    redact: [args.card]                # never stored or logged in clear
    result: { maxBytes: 1048576 }
  payments.refund:
    upstream: payments

agents:
  billing-bot:
    keys: ["sha256:${HEX_A}"]
    rules:                             # deny by default; any matching deny wins; else the first matching allow
      - allow: payments.charge         # exact name or glob: crm.*, *.list_*
        when: args.amount <= 50000 && args.currency == "usd"
        rate: 20/m
        budget: { sum: args.amount, max: 200000, per: 24h }
        approve: { when: args.amount > 10000, by: [finance], quorum: 1, within: 1h }
      - allow: crm.*
        effect: read                   # only the read tools of that glob
      - deny: "*.delete_*"

people:
  alice: { keys: ["sha256:${HEX_B}"], roles: [approver, operator], groups: [finance] }   # viewer < approver, operator < admin
`;

/** An http upstream `u`, for tests that are about something else. */
export const UPSTREAM_YAML = `upstreams:
  u: { adapter: http, url: "http://u.example" }
`;

export function compilePolicyText(
  yaml: string | Record<string, string>,
  env: Record<string, string | undefined> = {},
): LoadResult {
  const files = typeof yaml === 'string' ? { 'p.yaml': yaml } : yaml;
  return compilePolicies(
    Object.entries(files).map(([name, text]) => ({ name, file: `policies/${name}`, bytes: Buffer.from(text) })),
    env,
  );
}

export function compileValidPolicies(
  yaml: string | Record<string, string>,
  env: Record<string, string> = {},
): Policies {
  const loaded = compilePolicyText(yaml, env);
  if (!loaded.ok) throw new Error(loaded.faults.map(formatFault).join('\n'));
  return loaded.policies;
}

export function listPolicyFaults(yaml: string | Record<string, string>, env: Record<string, string> = {}): string[] {
  const loaded = compilePolicyText(yaml, env);
  return loaded.ok ? [] : loaded.faults.map(formatFault);
}

export function listPolicyWarnings(yaml: string | Record<string, string>): string[] {
  return compilePolicyText(yaml).warnings.map(formatFault);
}

export function requireAgent(policies: Policies, name = 'bot'): Agent {
  const agent = policies.agents.get(name);
  if (agent === undefined) throw new Error(`no agent ${name}`);
  return agent;
}

export function buildCallScope(args: JsonObject = {}): { args: JsonObject; saga: null; run: null; now: number } {
  return { args, saga: null, run: null, now: Date.UTC(2026, 0, 2) };
}

/** Measures processor time, so that waiting on a busy machine does not count. */
export function measureCpuMs(work: () => void): number {
  const started = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(started);
  return (user + system) / 1000;
}
