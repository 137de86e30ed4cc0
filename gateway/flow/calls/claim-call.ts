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

/** A call that passed judgement: who asks for what, under which contract and rule. */
export interface AdmittedCall {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  readonly hold: ApprovalSpec | undefined;
  /** How long it is held at most: for people, or because its rule delays it. Undefined: it is sent now. */
  readonly heldMs: number | undefined;
  readonly votes: readonly Vote[];
  readonly args: string;
  readonly fingerprint: Buffer;
  readonly identified: IdentifiedCall;
  readonly request: PreparedRequest;
  readonly guards: ClaimGuards | undefined;
  readonly stint: Span;
}

/**
 * T1. A crash before it leaves nothing; a crash after it leaves a call in `sending` whose owner is gone, which means
 * unknown although nothing may have left.
 */
export async function claimCall(
  { station, dispatch, claims }: Services,
  admitted: AdmittedCall,
): Promise<ClaimWon | ClaimTaken | StaleDecision> {
  const { asked, tool, identified } = admitted;
  const { txn } = identified;
  if (dispatch.inFlight(txn) !== undefined) return CLAIM_TAKEN;
  const owner = station.lease.id;
  const payload = { args: asked.args, request: admitted.request };
  const held = admitted.heldMs !== undefined;
  const kind = tool.effect === 'read' ? 'read' : tool.once.by;
  const keyLifetimeMs = tool.once.by === 'key' ? tool.once.lifetimeMs : null;
  const state = held ? 'held' : tool.observe === undefined ? 'sending' : 'ready';
  const stored = encodePayload(station.sealingKey, txn, tool, payload, admitted.args);
  const intent: Intent = {
    txn,
    agent: asked.agent.name,
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
    saga: asked.saga ?? null,
    dependsOn: asked.dependsOn ?? null,
    run: asked.fence?.run ?? null,
    epoch: asked.fence?.epoch ?? null,
    undo: tool.effect === 'read' ? null : buildStoredUndo(station, txn, tool, asked),
    undoes: null,
    entry: buildAuditEntry(held ? 'call_held' : 'call_claimed', {
      txn,
      agent: asked.agent.name,
      tool: tool.name,
      fingerprint: admitted.fingerprint.toString('hex'),
      policy: admitted.policies.version,
      rule: admitted.rule.id,
      saga: asked.saga,
      run: asked.fence?.run,
      epoch: asked.fence?.epoch,
      votes: admitted.votes.length === 0 ? undefined : renderVotes(admitted.votes),
    }),
  };
  refuseUnlessLeaseHeld(station, owner);
  station.reach('claiming');
  if (identified.announce !== undefined) await identified.announce();
  const attempt = () => {
    // Asked again each time: while something was locked, this process may have lost its name.
    refuseUnlessLeaseHeld(station, owner);
    return claims.claim(intent, admitted.guards, (lockToken) => {
      if (held) return;
      station.reach('claimed');
      const { follower } = asked;
      void dispatch.start(createJob(intent, tool, owner, payload, { lockToken, follower, stint: admitted.stint }));
    });
  };
  const claimed =
    admitted.guards?.locks === undefined
      ? await attempt()
      : await retryWhileLocked(attempt, asked.patienceMs, asked.caller, dispatch.shutdownToken);
  switch (claimed.kind) {
    case 'won':
      if (admitted.guards?.exposure !== undefined) station.taints.add(admitted.guards.exposure.scopes);
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
