import { buildAuditEntry, hashLeaf } from '../../domain/audit/audit.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { endHeldCall } from '../approvals/approvals.ts';
import type { Tx } from '../db.ts';
import { buildEndCtes } from './end-calls.ts';

interface RecalledCall {
  readonly txn: string;
  readonly state: string;
  /** No attempt is open or unknown, so the call certainly had no effect. */
  readonly isIdle: boolean;
}

/**
 * Ends the unsent calls of older epochs of a run: held calls, and calls between two attempts without an unknown attempt. The
 * other calls of older epochs send nothing more, except to resolve a doubt; until they end, the run is not drained. Returns the
 * ended calls.
 */
export async function withdrawOlderEpochs(tx: Tx, runEpoch: RunEpoch): Promise<readonly string[]> {
  const why = `its run was taken over, in epoch ${runEpoch.epoch}`;
  const held = await endOlderHeldCalls(tx, runEpoch, why);
  const idle = (await recallOlderCalls(tx, runEpoch)).filter((call) => call.isIdle);
  if (idle.length > 0) await endIdleCalls(tx, idle, why);
  return [...held, ...idle.map(({ txn }) => txn)];
}

async function endOlderHeldCalls(tx: Tx, runEpoch: RunEpoch, why: string): Promise<readonly string[]> {
  const ended: string[] = [];
  for (const txn of await listOlderHeldCalls(tx, runEpoch))
    if (await endHeldCall(tx, txn, 'cancelled', why, buildAuditEntry('call_cancelled', { txn, why }))) ended.push(txn);
  return ended;
}

/** The run is locked, so no older epoch can claim more calls. `endHeldCall` decides again whether each is still held. */
async function listOlderHeldCalls(tx: Tx, { run, epoch }: RunEpoch): Promise<readonly string[]> {
  const rows = await tx.run<{ txn: string }>({
    name: 'list-older-held',
    text: `select c.txn from open_calls o join calls c on c.txn = o.txn
      where o.run = $1 and c.epoch < $2 and o.state = 'held' order by c.txn`,
    values: [run, epoch],
  });
  return rows.map(({ txn }) => txn);
}

async function recallOlderCalls(tx: Tx, runEpoch: RunEpoch): Promise<readonly RecalledCall[]> {
  await lockOlderCalls(tx, runEpoch);
  return fenceOlderCalls(tx, runEpoch);
}

/** Locks the calls in order of txn, as every batch does. The update below would lock them in any order. */
async function lockOlderCalls(tx: Tx, { run, epoch }: RunEpoch): Promise<void> {
  await tx.run({
    name: 'lock-older',
    text: `select o.txn from open_calls o join calls c on c.txn = o.txn where o.run = $1 and c.epoch < $2 and not o.fenced
      order by o.txn for update of o`,
    values: [run, epoch],
  });
}

/** From its commit on, updates refuse new attempts of these calls. The rows are locked, so none is updated in between. */
function fenceOlderCalls(tx: Tx, { run, epoch }: RunEpoch): Promise<readonly RecalledCall[]> {
  return tx.run<RecalledCall>({
    name: 'fence-older',
    text: `update open_calls o set recalled = true, fenced = true from calls c
      where c.txn = o.txn and o.run = $1 and c.epoch < $2 and not o.fenced
      returning o.txn, o.state, not o.attempt_open and o.unresolved = 0 as "isIdle"`,
    values: [run, epoch],
  });
}

/** Ends idle calls without effect, with their audit entries. The rows are locked, so they are still idle. */
async function endIdleCalls(tx: Tx, idle: readonly RecalledCall[], why: string): Promise<void> {
  const ends = idle.map(({ txn, state }) => {
    const as = state === 'sending' || state === 'in_doubt' ? 'failed' : 'cancelled';
    const entry = buildAuditEntry(`call_${as}`, { txn, why });
    return { txn, as, problem: as === 'failed' ? 'fenced' : 'cancelled', entry, leaf: hashLeaf(entry) };
  });
  await tx.run({
    name: 'end-fenced',
    text: `with ending as (
        select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[]) as t(txn, state, problem, entry, leaf)
      ), ${buildEndCtes(
        'o.txn = e.txn',
        {
          state: 'state',
          outcome: `'no_effect'`,
          problem: 'problem',
          detail: '$6',
          evidence: `'gateway'`,
          leaf: 'leaf',
        },
        { using: 'ending e', returning: 'e.state, e.problem, e.leaf, e.entry' },
      )}
      insert into audit_queue (entry) select entry from ended`,
    values: [
      ends.map((end) => end.txn),
      ends.map((end) => end.as),
      ends.map((end) => end.problem),
      ends.map((end) => end.entry),
      ends.map((end) => end.leaf),
      why,
    ],
  });
}
