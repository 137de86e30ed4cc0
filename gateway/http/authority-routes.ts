import type { FastifyInstance, FastifyRequest } from 'fastify';
import { z } from 'zod';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Role } from '../domain/policy.ts';
import {
  type ApprovalView,
  decideApproval,
  findApprovals,
  readApprovalView,
} from '../flow/approvals/decide-approval.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { freezeScope, listBreakers, setManualBreaker, unfreezeScope } from '../flow/controls/freezes-and-breakers.ts';
import { readParam } from './call-routes.ts';
import { resolveToolName } from './catalogue.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

/** The reason of a person, required by every action. PostgreSQL cannot store NUL in a text. */
export const reason = z
  .string()
  .trim()
  .min(1)
  .max(2_000)
  .refine((text) => !text.includes('\0'), 'must not contain a NUL character');

const reasonSchema = z.strictObject({ reason });
const freezeSchema = z.strictObject({ reason, tool: z.string().min(1).max(128).optional() });
const decisionSchema = z.strictObject({
  reason,
  digest: z.string().regex(/^[0-9a-f]{64}$/, 'must be the digest of an approval: 64 hex digits'),
});
const explainSchema = z.strictObject({
  agent: z.string(),
  tool: z.string(),
  args: z.custom<JsonObject>((v) => typeof v === 'object' && v !== null && !Array.isArray(v), 'must be an object'),
});
const APPROVAL_STATES = ['pending', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed'] as const;
const TXN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export interface PolicyControl {
  /** Loads the policies again. Returns the faults of refused policies; empty on success. */
  reload(requestedBy: string): Promise<readonly string[]>;
  /** Why the policies on disk are not in force; empty when they are. */
  faults(): readonly string[];
}

/** Approvals, freezes, circuit breakers and policies, for people. */
export function authorityRoutes(app: FastifyInstance, services: Services, control: PolicyControl): void {
  const context = services.station;
  const identify = (request: FastifyRequest, role: Role) => identifyPerson(request, context.policies(), role);
  const param = (request: FastifyRequest, name: string) => (request.params as Record<string, string>)[name] ?? '';

  const readTxn = (request: FastifyRequest) => {
    const txn = param(request, 'txn');
    if (!TXN.test(txn)) throw new GatewayError('not_found', 'There is no approval with this txn.');
    return txn;
  };

  app.get('/admin/approvals', async (request) => {
    identify(request, 'viewer');
    const query = request.query as Record<string, string>;
    const state = readParam(query, 'state');
    const known = APPROVAL_STATES.find((name) => name === state);
    if (state !== undefined && known === undefined)
      throw new GatewayError('malformed', `state must be one of ${APPROVAL_STATES.join(', ')}.`);
    const page = await findApprovals(context, known, readParam(query, 'cursor'), 50);
    return { items: page.items.map(approvalJson), cursor: page.cursor };
  });

  app.get('/admin/approvals/:txn', async (request) => {
    identify(request, 'viewer');
    return approvalJson(await readApprovalView(context, readTxn(request)));
  });

  for (const verdict of ['approve', 'reject'] as const) {
    app.post(`/admin/approvals/:txn/${verdict}`, async (request) => {
      // The use case checks whether this person may decide, and logs a refusal.
      const person = identify(request, 'viewer');
      const txn = readTxn(request);
      return approvalJson(
        await decideApproval(services, { ...readBody(request, decisionSchema), txn, verdict, person }),
      );
    });
  }

  app.get('/admin/breakers', (request) => {
    identify(request, 'viewer');
    return { items: listBreakers(context), cursor: null };
  });
  for (const action of ['open', 'close'] as const) {
    app.post(`/admin/breakers/:upstream/${action}`, async (request) => {
      const person = identify(request, 'operator');
      return setManualBreaker(context, param(request, 'upstream'), action, {
        person: person.name,
        ...readBody(request, reasonSchema),
      });
    });
  }

  app.get('/admin/agents', (request) => {
    identify(request, 'viewer');
    const items = [...context.policies().agents.values()].map(({ name, rules }) => ({
      agent: name,
      rules: rules.map((rule) => ({ rule: rule.id, [rule.verdict]: rule.pattern })),
      frozen: frozenJson(services, name),
    }));
    return { items, cursor: null };
  });

  for (const [verb, act] of [
    ['freeze', freezeScope],
    ['unfreeze', unfreezeScope],
  ] as const) {
    app.post(`/admin/agents/:agent/${verb}`, async (request) => {
      const person = identify(request, 'operator');
      const agent = param(request, 'agent');
      if (verb === 'freeze' && !context.policies().agents.has(agent))
        throw new GatewayError('not_found', `There is no agent ${agent.slice(0, 128)}.`);
      await act(context, `agent:${agent}`, { person: person.name, ...readBody(request, reasonSchema) });
      return { agent, frozen: frozenJson(services, agent) };
    });
    app.post(`/admin/${verb}`, async (request) => {
      const person = identify(request, 'operator');
      const { tool, ...body } = readBody(request, freezeSchema);
      if (verb === 'freeze' && tool !== undefined && !context.policies().tools.has(tool))
        throw new GatewayError('not_found', `There is no tool ${tool}.`);
      const scope = tool === undefined ? 'all' : (`tool:${tool}` as const);
      await act(context, scope, { person: person.name, ...body });
      return { scope, frozen: context.switches.get(scope) !== undefined };
    });
  }

  app.get('/admin/freezes', (request) => {
    identify(request, 'viewer');
    const items = context.switches.list().filter(({ scope }) => !/^(breaker|closed|call):/.test(scope));
    return { items: items.map(({ at, ...frozen }) => ({ ...frozen, at: at.toISOString() })), cursor: null };
  });

  app.get('/admin/policies', (request) => {
    identify(request, 'viewer');
    const { version, files, upstreams, tools, agents, people } = context.policies();
    return {
      version,
      files: [...files],
      upstreams: [...upstreams.keys()],
      tools: [...tools.keys()],
      agents: [...agents.keys()],
      people: [...people.keys()],
    };
  });
  app.post('/admin/policies/reload', async (request) => {
    const person = identify(request, 'operator');
    const faults = await control.reload(`person ${person.name}`);
    if (faults.length > 0)
      throw new GatewayError('conflict', 'The policies on disk have faults. The old policies stay in force.', {
        members: { faults: [...faults] },
      });
    return { version: context.policies().version };
  });
  app.post('/admin/explain', async (request) => {
    identify(request, 'viewer');
    const { agent: name, tool, args } = readBody(request, explainSchema);
    const policies = context.policies();
    const agent = policies.agents.get(name);
    if (agent === undefined) throw new GatewayError('not_found', `There is no agent ${name.slice(0, 128)}.`);
    return dryRun(context, () => ({
      agent,
      tool: resolveToolName(policies, tool),
      args,
      key: undefined,
      patienceMs: 0,
    }));
  });
}

function frozenJson(services: Services, agent: string): JsonObject | null {
  const frozen = services.station.switches.get('all') ?? services.station.switches.get(`agent:${agent}`);
  return frozen === undefined
    ? null
    : { scope: frozen.scope, by: frozen.by, reason: frozen.reason, at: frozen.at.toISOString() };
}

function approvalJson({ approval, shown, policyVersion, digest }: ApprovalView): JsonObject {
  return {
    txn: approval.txn,
    agent: approval.agent,
    tool: approval.tool,
    state: approval.state,
    args: shown?.args ?? null,
    ...(shown?.input === undefined ? {} : { input: shown.input }),
    target: shown?.target ?? null,
    undo: shown?.undo ?? null,
    rule: shown?.rule ?? null,
    saga: shown?.saga ?? null,
    run: shown?.run ?? null,
    ...(shown?.facts === undefined ? {} : { facts: shown.facts }),
    policyVersion,
    digest,
    groups: approval.groups,
    quorum: approval.quorum,
    requestedAt: approval.requestedAt.toISOString(),
    expiresAt: approval.expiresAt.toISOString(),
    hold: approval.leavesAt === null ? 'approval' : 'delay',
    leavesAt: approval.leavesAt?.toISOString() ?? null,
    delaySeconds: approval.delayMs === null ? null : approval.delayMs / 1000,
    voters: (shown?.voters ?? []).map((vote) => ({ ...vote })),
    decidedAt: approval.decidedAt?.toISOString() ?? null,
    votes: approval.votes.map(({ person, verdict, reason: why, at }) => ({ person, verdict, reason: why, at })),
  };
}
