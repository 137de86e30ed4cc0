import { randomInt } from 'node:crypto';
import type { Vote } from '../../domain/approvals/vote.ts';
import type { PreparedRequest } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import type { ApprovalSpec, Policies, Rule, Tool } from '../../domain/policy.ts';
import type { Span } from '../../domain/telemetry.ts';
import {
  CLAIM_TAKEN,
  type ClaimGuards,
  type ClaimTaken,
  type ClaimWon,
  type Intent,
  type StaleDecision,
} from '../../ledger/calls/calls.ts';
import { renderVotes } from '../approvals/votes.ts';
import { createJob } from '../attempts/job.ts';
import { retryWhileLocked } from '../controls/locks.ts';
import { buildStoredUndo } from '../sagas/undo.ts';
import type { Services, ToolCall } from './execute-call.ts';
import type { IdentifiedCall } from './identify-call.ts';
import { buildLimitExceededError } from './limits.ts';
import { encodePayload } from './payload.ts';
import { buildLockedRefusal, buildOverLimitRefusal, refuseUnlessLeaseHeld } from './refuse.ts';

/** A call that the policies allow, with everything that its claim needs. */
export interface AdmittedCall {
  readonly toolCall: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  readonly hold: ApprovalSpec | undefined;
  /** How long the call is held at most, for approval or for the delay of its rule. Undefined: it is sent now. */
  readonly heldMs: number | undefined;
  readonly votes: readonly Vote[];
  readonly args: string;
  readonly fingerprint: Buffer;
  readonly identified: IdentifiedCall;
  readonly request: PreparedRequest;
  readonly guards: ClaimGuards | undefined;
  readonly span: Span;
}

/**
 * Claims a call and starts its first attempt. A crash before the commit leaves nothing. A crash after the commit leaves a
 * `sending` call whose owner is dead: its outcome is unknown, although perhaps nothing was sent.
 */
export async function claimCall(
  { ctx, dispatch, claims }: Services,
  admitted: AdmittedCall,
): Promise<ClaimWon | ClaimTaken | StaleDecision> {
  const { toolCall, tool, identified } = admitted;
  const { txn } = identified;
  if (dispatch.findInFlight(txn) !== undefined) return CLAIM_TAKEN;
  const owner = ctx.lease.id;
  const payload = { args: toolCall.args, request: admitted.request };
  const held = admitted.heldMs !== undefined;
  const kind = tool.effect === 'read' ? 'read' : tool.once.by;
  const keyLifetimeMs = tool.once.by === 'key' ? tool.once.lifetimeMs : null;
  const state = held ? 'held' : tool.observe === undefined ? 'sending' : 'ready';
  const stored = encodePayload(ctx.sealingKey, txn, tool, payload, admitted.args);
  const intent: Intent = {
    txn,
    agent: toolCall.agent.name,
    tool: tool.name,
    key: identified.key,
    identity: identified.identity,
    fingerprint: admitted.fingerprint,
    kind,
    fence: randomInt(1, 1_000_000_000),
    state,
    owner: held ? null : owner,
    dueInMs: admitted.heldMs ?? null,
    keyLifetimeMs,
    policyVersion: admitted.policies.version,
    rule: admitted.rule.id,
    args: stored.args,
    request: stored.request,
    sealed: stored.sealed,
    saga: toolCall.saga ?? null,
    dependsOn: toolCall.dependsOn ?? null,
    run: toolCall.runEpoch?.run ?? null,
    epoch: toolCall.runEpoch?.epoch ?? null,
    undo: tool.effect === 'read' ? null : buildStoredUndo(ctx, txn, tool, toolCall),
    undoes: null,
    entry: buildAuditEntry(held ? 'call_held' : 'call_claimed', {
      txn,
      agent: toolCall.agent.name,
      tool: tool.name,
      fingerprint: admitted.fingerprint.toString('hex'),
      policy: admitted.policies.version,
      rule: admitted.rule.id,
      saga: toolCall.saga,
      run: toolCall.runEpoch?.run,
      epoch: toolCall.runEpoch?.epoch,
      votes: admitted.votes.length === 0 ? undefined : renderVotes(admitted.votes),
    }),
  };
  refuseUnlessLeaseHeld(ctx, owner);
  ctx.reachKillPoint('claiming');
  if (identified.recordGeneration !== undefined) await identified.recordGeneration();
  const attempt = () => {
    // Checked before each try: this process may lose its lease while it waits for a lock.
    refuseUnlessLeaseHeld(ctx, owner);
    return claims.claim(intent, admitted.guards, (lockToken) => {
      if (held) return;
      ctx.reachKillPoint('claimed');
      const { progressListener } = toolCall;
      const options = { lockToken, progressListener, span: admitted.span };
      void dispatch.start(dispatch.register(createJob(intent, tool, owner, payload, options)));
    });
  };
  const claimed =
    admitted.guards?.locks === undefined
      ? await attempt()
      : await retryWhileLocked(attempt, toolCall.patienceMs, toolCall.cancelToken, dispatch.shutdownToken);
  switch (claimed.kind) {
    case 'won':
      if (admitted.guards?.exposure !== undefined) ctx.taintCache.add(admitted.guards.exposure.scopes);
      return claimed;
    case 'taken':
    case 'stale_decision':
      return claimed;
    case 'lock_conflict':
      throw buildLockedRefusal(admitted, claimed);
    case 'limit_exceeded':
      throw buildOverLimitRefusal(admitted, buildLimitExceededError(claimed, admitted.rule.id));
  }
}
