// biome-ignore-all lint/suspicious/noTemplateCurlyInString: descriptions show templates
import { z } from 'zod';
import { DURATION_PATTERN, INVALID_DURATION, parseDurationMs } from '../domain/duration.ts';

/**
 * The file format of policies. Types, strict checks and the JSON Schema for editors are all derived from these schemas. A message
 * here is the rest of a sentence that begins with the key: `timeout must be a duration such as …`.
 */
const duration = textLike(DURATION_PATTERN, INVALID_DURATION).meta({
  description: 'A duration: 500ms, 10s, 5m, 24h, 30d',
});
const durationOrZero = textLike(
  /^(?:0|[1-9]\d{0,8})(?:ms|s|m|h|d)$/,
  'must be a duration such as 0s, 500ms, 10s, 5m, 24h or 30d',
).meta({ description: 'A duration, or 0s' });
const percent = textLike(/^(?:100|[1-9]\d?)%$/, 'must be a percentage from 1% to 100%').meta({
  description: 'A percentage: 50%',
});
export const rateSchema = textLike(/^[1-9]\d{0,8}\/[smhd]$/, 'must be a number per s, m, h or d, such as 20/m').meta({
  description: 'A rate: 20/m; per s, m, h or d',
});

/** A string with one message for a wrong type and a wrong form. */
function textLike(pattern: RegExp, message: string): z.ZodString {
  return z.string(message).regex(pattern, message);
}

const toolName = z
  .string()
  .max(128)
  .regex(
    /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/,
    'must have only letters, digits, _ and -, in parts joined by single dots',
  );
const name = z
  .string()
  .max(64)
  .regex(/^[A-Za-z0-9_-]+$/, 'must have only letters, digits, _ and -');
export const globSchema = z
  .string()
  .max(128)
  .regex(/^[A-Za-z0-9_.*-]+$/, 'must be a tool name or glob of letters, digits, _, -, . and *');
/** The rest of a sentence about a wrong glob, without its full stop. Undefined when the glob is right. */
export function describeGlobFault(glob: string): string | undefined {
  const issue = globSchema.safeParse(glob).error?.issues[0];
  return issue?.code === 'too_big' ? `must have at most ${issue.maximum} characters` : issue?.message;
}
export const headerNameSchema = z
  .string()
  .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$/, 'must be a header name without spaces and separators');

const condition = z
  .union([z.string(), z.boolean()])
  .meta({ description: 'A CEL expression that yields true or false' });
const text = z.string().meta({ description: 'Text; may contain ${CEL}' });
const template = z
  .union([z.string(), z.record(z.string(), z.unknown())])
  .meta({ description: 'Arguments; every string may contain ${CEL}' });
const keys = z
  .array(z.string().meta({ description: '"sha256:<hex of the bearer key>", or "${env.NAME}" with that value' }))
  .max(16);

const untrusted = z
  .boolean()
  .meta({ description: 'Outsiders can write the content of its answers: calling it taints the agent' });

export const upstreamSchema = z.strictObject({
  adapter: z.enum(['http', 'mcp']),
  url: z.string().optional(),
  command: z.array(z.string()).min(1).optional(),
  env: z
    .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'must be the name of an environment variable'), z.string())
    .optional(),
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
      .regex(/^[^.\s]+(?:\.[^.\s]+)*$/, 'must be a path such as path.in.body')
      .optional(),
    lifetime: duration.optional(),
  }),
  z.strictObject({ by: z.literal('idempotent') }),
  z.strictObject({
    by: z.literal('probe'),
    probe: z.strictObject({
      tool: toolName,
      args: template.optional(),
      applied: condition,
      result: z
        .unknown()
        .meta({
          description: 'The result of the call after the probe found its effect; every string may contain ${CEL}',
        })
        .optional(),
    }),
    settles: durationOrZero.optional(),
  }),
  z.strictObject({ by: z.literal('none') }),
]);

const key = z.union([
  text,
  z.strictObject({
    of: text.meta({ description: 'The business key of a call: ${args.order_id}' }),
    scope: z
      .enum(['agent', 'shared'])
      .meta({ description: 'shared: equal requests of several agents are one call' })
      .optional(),
  }),
]);

const lock = z.union([
  text,
  z.strictObject({
    key: text.meta({ description: 'The name of the lock: card/${args.card}, or table/* for every name below' }),
    mode: z.enum(['exclusive', 'shared']).optional(),
    for: z
      .enum(['call', 'saga', 'run'])
      .meta({ description: 'How long the lock is held: until the call, the saga or the run ends' })
      .optional(),
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
      body: z.unknown().meta({ description: 'Any JSON; every string may contain ${CEL}' }).optional(),
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
        .meta({ description: 'After this time the read shows the effect of an unknown attempt, and ends the doubt' })
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
  failed: condition
    .meta({ description: 'CEL over status and result of a 2xx answer: true if it says that nothing happened' })
    .optional(),
  accepted: z
    .array(z.int().min(200).max(299))
    .meta({ description: 'Statuses that say that the work was taken on and may not be done yet' })
    .optional(),
  proxy: z
    .literal(true)
    .meta({ description: 'Of several tools with one method and path, the one that the proxy route takes' })
    .optional(),
  redact: z
    .array(z.string().regex(/^(?:args|result)(?:\.[^.\s]+)+$/, 'must be a path such as args.card or result.token'))
    .optional(),
  result: z.strictObject({ maxBytes: z.int().min(0).max(67_108_864).optional() }).optional(),
  record: z.boolean().meta({ description: 'false: calls of this read are not recorded in the ledger' }).optional(),
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
    .meta({ description: 'The URL of the voter, which answers approve, deny or abstain' })
    .optional(),
  secret: z
    .string()
    .meta({ description: 'Signs the request and the answer: "${env.NAME}" or "${file("/path")}"' })
    .optional(),
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
    .meta({ description: 'The voters on each call, and how many of them must approve (default: all)' })
    .optional(),
  delay: duration
    .meta({ description: 'How long a call is held before it is sent; it can be recalled in this time' })
    .optional(),
});

const jwt = z
  .strictObject({
    issuer: z
      .string()
      .min(1)
      .max(2048)
      .meta({ description: 'The OIDC issuer, exactly as in the iss claim of its tokens' }),
    audience: z.string().min(1).max(2048).meta({ description: 'The value that the aud claim must contain' }),
    claims: z
      .record(z.string().min(1).max(256), z.union([z.string(), z.number(), z.boolean()]))
      .meta({ description: 'Claims that a token must have, with exactly these values' })
      .optional(),
    allowPrivate: z.boolean().meta({ description: 'The issuer is at a private or loopback address' }).optional(),
  })
  .meta({ description: 'Tokens of an OIDC issuer that authenticate this agent' });

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
        .meta({ description: 'Earlier calls of the agent' })
        .optional(),
      tainted: z.boolean().meta({ description: 'Whether the agent is tainted' }).optional(),
      votes: z
        .record(name, z.enum(['approve', 'deny', 'abstain']))
        .meta({ description: 'The votes of webhooks; a webhook that is not named abstains' })
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
