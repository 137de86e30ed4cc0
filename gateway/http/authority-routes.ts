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
import { single } from './call-routes.ts';
import { toolNamed } from './catalogue.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

/** A person's reason, as every action wants one. PostgreSQL stores no NUL in a text. */
export const reason = z
  .string()
  .trim()
  .min(1)
  .max(2_000)
  .refine((text) => !text.includes('\0'), 'holds a NUL character');

const reasonSchema = z.strictObject({ reason });
const freezeSchema = z.strictObject({ reason, tool: z.string().min(1).max(128).optional() });
const decisionSchema = z.strictObject({
  reason,
  digest: z.string().regex(/^[0-9a-f]{64}$/, 'is not the digest of an approval'),
});
const explainSchema = z.strictObject({
  agent: z.string(),
  tool: z.string(),
  args: z.custom<JsonObject>((v) => typeof v === 'object' && v !== null && !Array.isArray(v), 'must be an object'),
});
const APPROVAL_STATES = ['pending', 'approved', 'rejected', 'expired', 'cancelled', 'unopposed'] as const;
const TXN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export interface PolicyControl {
  /** Loads the policies again; the faults, if they were refused. */
  reload(askedBy: string): Promise<readonly string[]>;
  /** Why what is on disk is not in force; empty when it is. */
  faults(): readonly string[];
}

/** Who may still do what: approvals, the kill switch, breakers, policies. */
export function authorityRoutes(app: FastifyInstance, flow: Services, control: PolicyControl): void {
  const { station } = flow;
  const as = (request: FastifyRequest, role: Role) => identifyPerson(request, station.policies(), role);
  const param = (request: FastifyRequest, name: string) => (request.params as Record<string, string>)[name] ?? '';

  const txnOf = (request: FastifyRequest) => {
    const txn = param(request, 'txn');
    if (!TXN.test(txn)) throw new GatewayError('not_found', 'Nothing waits for a decision here.');
    return txn;
  };

  app.get('/admin/approvals', async (request) => {
    as(request, 'viewer');
    const query = request.query as Record<string, string>;
    const state = single(query, 'state');
    const known = APPROVAL_STATES.find((name) => name === state);
    if (state !== undefined && known === undefined)
      throw new GatewayError('malformed', `state must be one of ${APPROVAL_STATES.join(', ')}.`);
    const page = await findApprovals(station, known, single(query, 'cursor'), 50);
    return { items: page.items.map(approvalJson), cursor: page.cursor };
  });

  app.get('/admin/approvals/:txn', async (request) => {
    as(request, 'viewer');
    return approvalJson(await readApprovalView(station, txnOf(request)));
  });

  for (const verdict of ['approve', 'reject'] as const) {
    app.post(`/admin/approvals/:txn/${verdict}`, async (request) => {
      // Whose it is to decide is for the flow to know, and to log.
      const person = as(request, 'viewer');
      const txn = txnOf(request);
      return approvalJson(await decideApproval(flow, { ...readBody(request, decisionSchema), txn, verdict, person }));
    });
  }

  app.get('/admin/breakers', (request) => {
    as(request, 'viewer');
    return { items: listBreakers(station), cursor: null };
  });
  for (const to of ['open', 'close'] as const) {
    app.post(`/admin/breakers/:upstream/${to}`, async (request) => {
      const person = as(request, 'operator');
      return setManualBreaker(station, param(request, 'upstream'), to, {
        person: person.name,
        ...readBody(request, reasonSchema),
      });
    });
  }

  app.get('/admin/agents', (request) => {
    as(request, 'viewer');
    const items = [...station.policies().agents.values()].map(({ name, rules }) => ({
      agent: name,
      rules: rules.map((rule) => ({ rule: rule.id, [rule.verdict]: rule.pattern })),
      frozen: frozenJson(flow, name),
    }));
    return { items, cursor: null };
  });

  for (const [verb, act] of [
    ['freeze', freezeScope],
    ['unfreeze', unfreezeScope],
  ] as const) {
    app.post(`/admin/agents/:agent/${verb}`, async (request) => {
      const person = as(request, 'operator');
      const agent = param(request, 'agent');
      if (verb === 'freeze' && !station.policies().agents.has(agent))
        throw new GatewayError('not_found', `There is no agent ${agent.slice(0, 128)}.`);
      await act(station, `agent:${agent}`, { person: person.name, ...readBody(request, reasonSchema) });
      return { agent, frozen: frozenJson(flow, agent) };
    });
    app.post(`/admin/${verb}`, async (request) => {
      const person = as(request, 'operator');
      const { tool, ...hand } = readBody(request, freezeSchema);
      if (verb === 'freeze' && tool !== undefined && !station.policies().tools.has(tool))
        throw new GatewayError('not_found', `There is no tool ${tool}.`);
      const scope = tool === undefined ? 'all' : (`tool:${tool}` as const);
      await act(station, scope, { person: person.name, ...hand });
      return { scope, frozen: station.switches.get(scope) !== undefined };
    });
  }

  app.get('/admin/freezes', (request) => {
    as(request, 'viewer');
    const items = station.switches.list().filter(({ scope }) => !/^(breaker|closed|call):/.test(scope));
    return { items: items.map(({ at, ...frozen }) => ({ ...frozen, at: at.toISOString() })), cursor: null };
  });

  app.get('/admin/policies', (request) => {
    as(request, 'viewer');
    const { version, files, upstreams, tools, agents, people } = station.policies();
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
    const person = as(request, 'operator');
    const faults = await control.reload(`person ${person.name}`);
    if (faults.length > 0)
      throw new GatewayError('conflict', 'The policies on disk are bad; the old ones stay in force.', {
        members: { faults: [...faults] },
      });
    return { version: station.policies().version };
  });
  app.post('/admin/explain', async (request) => {
    as(request, 'viewer');
    const { agent: name, tool, args } = readBody(request, explainSchema);
    const policies = station.policies();
    const agent = policies.agents.get(name);
    if (agent === undefined) throw new GatewayError('not_found', `There is no agent ${name.slice(0, 128)}.`);
    return dryRun(station, () => ({ agent, tool: toolNamed(policies, tool), args, key: undefined, patienceMs: 0 }));
  });
}

function frozenJson(flow: Services, agent: string): JsonObject | null {
  const frozen = flow.station.switches.get('all') ?? flow.station.switches.get(`agent:${agent}`);
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
