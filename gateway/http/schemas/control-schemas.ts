import { z } from 'zod';
import { anyJson, count, digestOf, jsonObject, reason, text, time, uuid } from './fields.ts';

export const freezeBody = z.strictObject({ reason, tool: z.string().min(1).max(128).optional() });
export const decisionBody = z.strictObject({ reason, digest: digestOf('an approval') });
export const acceptPinBody = z.strictObject({ reason, digest: digestOf('the offered definition') });
export const explainBody = z.strictObject({ agent: z.string(), tool: z.string(), args: jsonObject });

export const approvalState = z.enum(['pending', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed']);

const vote = z.object({ person: text, verdict: z.enum(['approve', 'reject']), reason: text, at: text });

export const approvalAnswer = z
  .object({
    txn: uuid,
    agent: text,
    tool: text,
    state: approvalState,
    args: anyJson,
    input: z.exactOptional(anyJson).describe('The input that an MCP client sent with the arguments.'),
    target: z.object({ upstream: text, method: text, url: text }).nullable(),
    undo: z.custom<object>().nullable().meta({ type: 'object' }),
    rule: text.nullable(),
    saga: uuid.nullable(),
    run: uuid.nullable(),
    facts: z.exactOptional(jsonObject).describe('The history and taint that the rule asked for.'),
    policyVersion: text,
    digest: text.nullable().describe('The digest of the shown request. A decision must send it.'),
    groups: z.array(text).readonly(),
    quorum: count,
    requestedAt: time,
    expiresAt: time,
    hold: z.enum(['approval', 'delay']),
    leavesAt: time.nullable().describe('When the call is sent without a decision; null: not before an approval.'),
    delaySeconds: z.number().nullable(),
    voters: z.array(z.custom<object>().meta({ type: 'object' })).describe('The votes of programs.'),
    decidedAt: time.nullable(),
    votes: z.array(vote).describe('The votes of people.'),
  })
  .meta({ id: 'Approval' });

export const breakerAnswer = z.object({
  upstream: text,
  state: z.enum(['closed', 'open', 'half_open']),
  by: text,
  reason: text.nullable(),
});
export const freezeAnswer = z.object({
  scope: text.describe('all, agent:NAME or tool:NAME'),
  by: text,
  reason: text,
  at: time,
});

export const lockAnswer = z.object({
  resource: text,
  mode: z.enum(['exclusive', 'shared']),
  for: text,
  holder: uuid,
  token: z.int(),
  txn: uuid,
  agent: text,
  tool: text,
  since: time,
});

export const agentAnswer = z.object({
  agent: text,
  rules: z.array(z.object({ rule: text, allow: text.optional(), deny: text.optional() })),
  frozen: freezeAnswer.nullable(),
});
export const agentFreezeAnswer = agentAnswer.omit({ rules: true });
export const scopeFreezeAnswer = z.object({ scope: text, frozen: z.boolean() });

const definition = anyJson.describe('The definition as the MCP server gives it.');

export const pinAnswer = z
  .object({
    upstream: text,
    tool: text,
    state: z.enum(['pinned', 'changed']),
    digest: text,
    definition,
    pinnedAt: time,
    acceptedBy: text.nullable(),
    offered: z.object({ digest: text.nullable(), definition, since: time.nullable() }).nullable(),
  })
  .meta({ id: 'Pin' });

const names = z.array(text);
export const policiesAnswer = z.object({
  version: text,
  files: names,
  upstreams: names,
  tools: names,
  agents: names,
  people: names,
});
export const policyVersionAnswer = policiesAnswer.pick({ version: true });

export const dryRunAnswer = z
  .looseObject({ dryRun: z.literal(true), wouldAnswer: jsonObject })
  .describe('Every rule that was tried, and the answer that the call would get.');

export type ApprovalJson = z.infer<typeof approvalAnswer>;
export type PinJson = z.infer<typeof pinAnswer>;
