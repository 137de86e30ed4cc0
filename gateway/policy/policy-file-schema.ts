// biome-ignore-all lint/suspicious/noTemplateCurlyInString: descriptions show templates
import { z } from 'zod';
import { DURATION_PATTERN, INVALID_DURATION, parseDurationMs } from '../domain/duration.ts';

/**
 * The file format of policies, the one place where it is written down: types, strict checks and the editors' JSON
 * Schema come from here. Messages continue a sentence that begins with the value: `"10 s" is not a duration: …`.
 */
const duration = z
  .string()
  .regex(DURATION_PATTERN, INVALID_DURATION)
  .meta({ description: 'A duration: 500ms, 10s, 5m, 24h, 30d' });
const durationOrZero = z
  .string()
  .regex(/^(?:0|[1-9]\d{0,8})(?:ms|s|m|h|d)$/, 'is not a duration: write 0s, 500ms, 10s, 5m, 24h or 30d')
  .meta({ description: 'A duration, or 0s' });
const percent = z
  .string()
  .regex(/^(?:100|[1-9]\d?)%$/, 'is not a percentage: write 1% to 100%')
  .meta({ description: 'A percentage: 50%' });
export const rateSchema = z
  .string()
  .regex(/^[1-9]\d{0,8}\/[smhd]$/, 'is not a rate: write 20/m (per s, m, h or d)')
  .meta({ description: 'A rate: 20/m; per s, m, h or d' });

const toolName = z
  .string()
  .max(128)
  .regex(
    /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/,
    'is not a tool name: letters, digits, _ and -, in parts joined by dots',
  );
const name = z
  .string()
  .max(64)
  .regex(/^[A-Za-z0-9_-]+$/, 'is not a name: letters, digits, _ and -');
export const globSchema = z
  .string()
  .max(128)
  .regex(/^[A-Za-z0-9_.*-]+$/, 'is not a tool name or glob: letters, digits, _ - . and *');
export const headerNameSchema = z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$/, 'is not a header name');

const condition = z.union([z.string(), z.boolean()]).meta({ description: 'CEL that yields true or false' });
const text = z.string().meta({ description: 'Text with ${CEL}' });
const template = z
  .union([z.string(), z.record(z.string(), z.unknown())])
  .meta({ description: 'Arguments; every string may hold ${CEL}' });
const keys = z
  .array(z.string().meta({ description: '"sha256:<hex of the bearer key>", or "${env.NAME}" that holds it' }))
  .max(16);

const untrusted = z.boolean().meta({ description: 'Strangers can write what it answers: its callers are tainted' });

export const upstreamSchema = z.strictObject({
  adapter: z.enum(['http', 'mcp']),
  url: z.string().optional(),
  command: z.array(z.string()).min(1).optional(),
  env: z.record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'is not a name of a variable'), z.string()).optional(),
  headers: z.record(headerNameSchema, z.string()).optional(),
  timeout: duration.optional(),
  concurrency: z.int().min(1).max(10_000).optional(),
  breaker: z
    .strictObject({
      threshold: percent.optional(),
      minimum: z.int().min(1).max(1_000_000).optional(),
      window: duration.optional(),
      cooldown: duration.optional(),
    })
    .optional(),
  allowPrivate: z.boolean().optional(),
  import: z
    .string()
    .min(1)
    .max(255)
    .meta({ description: 'mcp: a glob over the names of its tools; http: the path of an OpenAPI document' })
    .optional(),
  expose: z.enum(['prefixed', 'bare']).optional(),
  untrusted: untrusted.optional(),
});

const once = z.discriminatedUnion('by', [
  z.strictObject({
    by: z.literal('key'),
    header: headerNameSchema.optional(),
    field: z
      .string()
      .regex(/^[^.\s]+(?:\.[^.\s]+)*$/, 'is not a path: write path.in.body')
      .optional(),
    lifetime: duration.optional(),
  }),
  z.strictObject({ by: z.literal('idempotent') }),
  z.strictObject({
    by: z.literal('probe'),
    probe: z.strictObject({ tool: toolName, args: template.optional(), applied: condition }),
    settles: durationOrZero.optional(),
  }),
  z.strictObject({ by: z.literal('none') }),
]);

const key = z.union([
  text,
  z.strictObject({
    of: text.meta({ description: 'What tells a call from others: ${args.order_id}' }),
    scope: z
      .enum(['agent', 'shared'])
      .meta({ description: 'shared: the same wish of several agents is one call' })
      .optional(),
  }),
]);

const lock = z.union([
  text,
  z.strictObject({
    key: text.meta({ description: 'What is locked: card/${args.card}, or table/* for everything below' }),
    mode: z.enum(['exclusive', 'shared']).optional(),
    for: z.enum(['call', 'saga', 'run']).meta({ description: 'How long it is held' }).optional(),
  }),
]);

export const toolSchema = z.strictObject({
  upstream: name,
  description: z.string().max(8192).optional(),
  title: z.string().max(128).optional(),
  output: z.record(z.string(), z.unknown()).meta({ description: 'JSON Schema of the results' }).optional(),
  input: z.record(z.string(), z.unknown()).meta({ description: 'JSON Schema of the arguments' }).optional(),
  effect: z.enum(['read', 'write']).optional(),
  request: z
    .strictObject({
      method: z.enum(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE']).optional(),
      path: text.optional(),
      query: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])).optional(),
      headers: z.record(headerNameSchema, z.string()).optional(),
      body: z.unknown().meta({ description: 'Any JSON; every string may hold ${CEL}' }).optional(),
    })
    .optional(),
  once: once.optional(),
  key: key.optional(),
  undo: z
    .strictObject({
      kind: z.enum(['reversible', 'compensable', 'irreversible', 'none']),
      tool: toolName.optional(),
      args: template.optional(),
    })
    .optional(),
  observe: z
    .strictObject({
      tool: toolName,
      args: template.optional(),
      satisfied: condition,
      settles: durationOrZero
        .meta({ description: 'After this long the read shows what an unknown attempt did, and it ends the doubt' })
        .optional(),
    })
    .optional(),
  locks: z.array(lock).max(16).optional(),
  timeout: duration.optional(),
  retry: z
    .strictObject({
      attempts: z.int().min(1).max(100).optional(),
      base: duration.optional(),
      max: duration.optional(),
      within: duration.optional(),
    })
    .optional(),
  noEffect: z.array(z.int().min(300).max(599)).optional(),
  redact: z
    .array(z.string().regex(/^(?:args|result)(?:\.[^.\s]+)+$/, 'is not a path: write args.card or result.token'))
    .optional(),
  result: z.strictObject({ maxBytes: z.int().min(0).max(67_108_864).optional() }).optional(),
  record: z.boolean().meta({ description: 'false: a read that leaves nothing in the ledger' }).optional(),
  untrusted: untrusted.optional(),
  repeats: z
    .strictObject({ policy: z.enum(['replay', 'hold', 'run']).optional(), window: durationOrZero.optional() })
    .optional(),
});

const voter = z.strictObject({
  name,
  when: condition.optional(),
  webhook: z
    .string()
    .min(1)
    .max(2048)
    .meta({ description: 'Whom to ask; answers approve, deny or abstain' })
    .optional(),
  secret: z.string().meta({ description: 'Signs question and answer: "${env.NAME}" or "${file("/path")}"' }).optional(),
  within: duration.optional(),
  allowPrivate: z.boolean().meta({ description: 'The webhook is at a private or loopback address' }).optional(),
});

const ruleSchema = z.strictObject({
  allow: globSchema.optional(),
  deny: globSchema.optional(),
  effect: z.enum(['read', 'write']).optional(),
  when: condition.optional(),
  rate: rateSchema.optional(),
  budget: z.strictObject({ sum: z.union([z.string(), z.number()]), max: z.number().min(0), per: duration }).optional(),
  approve: z
    .union([
      z.literal('never'),
      z.strictObject({
        when: condition.optional(),
        by: z.array(name).optional(),
        quorum: z.int().min(1).max(100).optional(),
        within: duration.optional(),
      }),
    ])
    .optional(),
  voters: z
    .strictObject({ quorum: z.int().min(1).max(16).optional(), of: z.array(voter).min(1).max(16) })
    .meta({ description: 'Who must be convinced of each call, and how many of them (default all)' })
    .optional(),
  delay: duration
    .meta({ description: 'Held this long before it leaves by itself: time to think better of it' })
    .optional(),
});

const jwt = z
  .strictObject({
    issuer: z.string().min(1).max(2048).meta({ description: 'The OIDC issuer, exactly as its tokens say it in iss' }),
    audience: z.string().min(1).max(2048).meta({ description: 'What must stand in aud' }),
    claims: z
      .record(z.string().min(1).max(256), z.union([z.string(), z.number(), z.boolean()]))
      .meta({ description: 'Claims that must be there with exactly these values' })
      .optional(),
    allowPrivate: z.boolean().meta({ description: 'The issuer is at a private or loopback address' }).optional(),
  })
  .meta({ description: 'Tokens of an OIDC issuer that make their bearer this agent' });

export const agentSchema = z.strictObject({
  keys: keys.optional(),
  jwt: jwt.optional(),
  rules: z.array(ruleSchema).optional(),
});

export const personSchema = z.strictObject({
  keys: keys.optional(),
  roles: z.array(z.enum(['viewer', 'approver', 'operator', 'admin'])).optional(),
  groups: z.array(name).optional(),
});

export const nameSchemas = { upstreams: name, tools: toolName, agents: name, people: name } as const;

export const policyFileSchema = z.strictObject({
  upstreams: z.record(name, upstreamSchema).nullish(),
  tools: z.record(toolName, toolSchema).nullish(),
  agents: z.record(name, agentSchema).nullish(),
  people: z.record(name, personSchema).nullish(),
});

export const testFileSchema = z.strictObject({
  tests: z.array(
    z.strictObject({
      name: z.string().min(1),
      agent: name,
      tool: toolName,
      args: z.record(z.string(), z.unknown()).optional(),
      saga: z.string().optional(),
      run: z.string().optional(),
      now: z.iso.datetime({ offset: true }).optional(),
      history: z
        .array(
          z.strictObject({ tool: toolName, args: z.record(z.string(), z.unknown()).optional(), ago: durationOrZero }),
        )
        .meta({ description: 'What the agent did before' })
        .optional(),
      tainted: z.boolean().meta({ description: 'Whether it has read what strangers wrote' }).optional(),
      votes: z
        .record(name, z.enum(['approve', 'deny', 'abstain']))
        .meta({ description: 'What voters behind webhooks say; whoever is not named says nothing' })
        .optional(),
      expect: z.enum(['allow', 'deny', 'hold']),
      rule: z.string().optional(),
      code: z.enum(['denied', 'unknown_tool']).optional(),
    }),
  ),
});

export type KeyDeclaration = z.infer<typeof key>;
export type LockDeclaration = z.infer<typeof lock>;
export type UpstreamDeclaration = z.infer<typeof upstreamSchema>;
export type ToolDeclaration = z.infer<typeof toolSchema>;
export type VoterDeclaration = z.infer<typeof voter>;
export type RuleDeclaration = z.infer<typeof ruleSchema>;
export type AgentDeclaration = z.infer<typeof agentSchema>;
export type PersonDeclaration = z.infer<typeof personSchema>;
export type PolicyTestFile = z.infer<typeof testFileSchema>;

/** For editors: `# yaml-language-server: $schema=./schema.json` at the top of a policy file. */
export function buildPolicyJsonSchema(): object {
  return { ...z.toJSONSchema(policyFileSchema, { io: 'input' }), title: 'Oncegate policies' };
}

export function parseRate(text: string): { limit: number; perMs: number } {
  const [limit, unit] = text.split('/');
  return { limit: Number(limit), perMs: parseDurationMs(`1${unit}`) };
}
