import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Role } from '../domain/policy.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { freezeScope, listBreakers, setManualBreaker, unfreezeScope } from '../flow/controls/freezes-and-breakers.ts';
import { resolveToolName } from './catalogue.ts';
import { explainBody, freezeBody } from './schemas/control-schemas.ts';
import { reasonBody } from './schemas/fields.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

/** The policies on disk, as the admin API reloads and reports them. */
export interface PolicyControl {
  /** Loads the policies again. Returns the faults of refused policies; empty on success. */
  reload(requestedBy: string): Promise<readonly string[]>;
  /** Why the policies on disk are not in force; empty when they are. */
  faults(): readonly string[];
}

/** Circuit breakers, freezes and policies, for people. */
export function controlRoutes(app: FastifyInstance, services: Services, control: PolicyControl): void {
  const context = services.ctx;
  const identify = (request: FastifyRequest, role: Role) => identifyPerson(request, context.policies(), role);
  const param = (request: FastifyRequest, name: string) => (request.params as Record<string, string>)[name] ?? '';

  app.get('/admin/breakers', (request) => {
    identify(request, 'viewer');
    return { items: listBreakers(context), cursor: null };
  });
  for (const action of ['open', 'close'] as const) {
    app.post(`/admin/breakers/:upstream/${action}`, async (request) => {
      const person = identify(request, 'operator');
      return setManualBreaker(context, param(request, 'upstream'), action, {
        person: person.name,
        ...readBody(request, reasonBody),
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
      await act(context, `agent:${agent}`, { person: person.name, ...readBody(request, reasonBody) });
      return { agent, frozen: frozenJson(services, agent) };
    });
    app.post(`/admin/${verb}`, async (request) => {
      const person = identify(request, 'operator');
      const { tool, ...body } = readBody(request, freezeBody);
      if (verb === 'freeze' && tool !== undefined && !context.policies().tools.has(tool))
        throw new GatewayError('not_found', `There is no tool ${tool}.`);
      const scope = tool === undefined ? 'all' : (`tool:${tool}` as const);
      await act(context, scope, { person: person.name, ...body });
      return { scope, frozen: context.controlFlags.get(scope) !== undefined };
    });
  }

  app.get('/admin/freezes', (request) => {
    identify(request, 'viewer');
    const items = context.controlFlags.list().filter(({ scope }) => !/^(breaker|closed|call):/.test(scope));
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
    const { agent: name, tool, args } = readBody(request, explainBody);
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
  const frozen = services.ctx.controlFlags.get('all') ?? services.ctx.controlFlags.get(`agent:${agent}`);
  return frozen === undefined
    ? null
    : { scope: frozen.scope, by: frozen.by, reason: frozen.reason, at: frozen.at.toISOString() };
}
