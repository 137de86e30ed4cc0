import { randomInt } from 'node:crypto';
import type { PreparedRequest } from '../domain/adapter.ts';
import { auditEntry } from '../domain/audit.ts';
import type { Approve, Policies, Rule, Tool } from '../domain/policy.ts';
import type { Vote } from '../domain/vote.ts';
import type { Stint } from '../domain/watch.ts';
import type { Guards, Intent, Overtaken } from '../ledger/calls.ts';
import type { Flow, ToolCall } from './call-tool.ts';
import type { Identified } from './identify-call.ts';
import { freshJob } from './job.ts';
import { isLocked, whenUnlocked } from './locking.ts';
import { store } from './payload.ts';
import { overLimit, refuseLocked, refuseUnlessInForce } from './refuse.ts';
import { exceeded } from './spending.ts';
import { storedUndo } from './undo.ts';
import { votesJson } from './votes.ts';

/** A call that passed judgement: who asks for what, under which contract and rule. */
export interface Admitted {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  readonly hold: Approve | undefined;
  /** How long it is held at most: for people, or because its rule delays it. Undefined: it is sent now. */
  readonly heldMs: number | undefined;
  readonly votes: readonly Vote[];
  readonly args: string;
  readonly fingerprint: Buffer;
  readonly identified: Identified;
  readonly request: PreparedRequest;
  readonly guards: Guards | undefined;
  readonly stint: Stint;
}

/**
 * T1. A crash before it leaves nothing; a crash after it leaves a call in `sending` whose owner is gone, which means
 * unknown although nothing may have left.
 */
export async function claimCall({ station, dispatch, claims }: Flow, admitted: Admitted): Promise<boolean | Overtaken> {
  const { asked, tool, identified } = admitted;
  const { txn } = identified;
  if (dispatch.carried(txn) !== undefined) return false;
  const owner = station.lease.id;
  const payload = { args: asked.args, request: admitted.request };
  const held = admitted.heldMs !== undefined;
  const kind = tool.effect === 'read' ? 'read' : tool.once.by;
  const keyLifetimeMs = tool.once.by === 'key' ? tool.once.lifetimeMs : null;
  const state = held ? 'held' : tool.observe === undefined ? 'sending' : 'ready';
  const stored = store(station.sealingKey, txn, tool, payload, admitted.args);
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
    undo: tool.effect === 'read' ? null : storedUndo(station, txn, tool, asked),
    undoes: null,
    entry: auditEntry(held ? 'call_held' : 'call_claimed', {
      txn,
      agent: asked.agent.name,
      tool: tool.name,
      fingerprint: admitted.fingerprint.toString('hex'),
      policy: admitted.policies.version,
      rule: admitted.rule.id,
      saga: asked.saga,
      run: asked.fence?.run,
      epoch: asked.fence?.epoch,
      votes: admitted.votes.length === 0 ? undefined : votesJson(admitted.votes),
    }),
  };
  refuseUnlessInForce(station, owner);
  station.reach('claiming');
  if (identified.announce !== undefined) await identified.announce();
  const attempt = () => {
    // Asked again each time: while something was locked, this process may have lost its name.
    refuseUnlessInForce(station, owner);
    return claims.claim(intent, admitted.guards, (lockToken) => {
      if (held) return;
      station.reach('claimed');
      const { follower } = asked;
      void dispatch.carry(freshJob(intent, tool, owner, payload, { lockToken, follower, stint: admitted.stint }));
    });
  };
  const claimed =
    admitted.guards?.locks === undefined
      ? await attempt()
      : await whenUnlocked(attempt, asked.patienceMs, asked.caller, dispatch.stopping);
  if (typeof claimed === 'object' && 'past' in claimed) return claimed;
  if (isLocked(claimed)) throw refuseLocked(admitted, claimed);
  if (typeof claimed === 'object') throw overLimit(admitted, exceeded(claimed, admitted.rule.id));
  if (claimed === 'won') station.taints.add(admitted.guards?.exposure?.scopes ?? []);
  return claimed === 'won';
}
