import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import {
  type ApprovalView,
  decideApproval,
  findApprovals,
  readApprovalView,
} from '../flow/approvals/decide-approval.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { type ApprovalJson, approvalState, decisionBody } from './schemas/control-schemas.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';
import { type Query, readChoice, readParam, UUID } from './transport/query.ts';

const PAGE_SIZE = 50;

/** Approvals, for people. */
export function approvalRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;

  const readTxn = (request: FastifyRequest) => {
    const { txn } = request.params as { txn: string };
    if (!UUID.test(txn)) throw new GatewayError('not_found', 'There is no approval with this txn.');
    return txn;
  };

  app.get('/admin/approvals', async (request) => {
    identifyPerson(request, context.policies(), 'viewer');
    const query = request.query as Query;
    const state = readChoice(query, 'state', approvalState.options);
    const page = await findApprovals(context, state, readParam(query, 'cursor'), PAGE_SIZE);
    return { items: page.items.map(approvalJson), cursor: page.cursor };
  });

  app.get('/admin/approvals/:txn', async (request) => {
    identifyPerson(request, context.policies(), 'viewer');
    return approvalJson(await readApprovalView(context, readTxn(request)));
  });

  for (const verdict of ['approve', 'reject'] as const) {
    app.post(`/admin/approvals/:txn/${verdict}`, async (request) => {
      // The use case checks whether this person may decide, and logs a refusal.
      const person = identifyPerson(request, context.policies(), 'viewer');
      const txn = readTxn(request);
      return approvalJson(await decideApproval(services, { ...readBody(request, decisionBody), txn, verdict, person }));
    });
  }
}

function approvalJson({ approval, shown, policyVersion, digest }: ApprovalView): ApprovalJson {
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
