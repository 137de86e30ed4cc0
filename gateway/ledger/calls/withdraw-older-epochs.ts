import { buildAuditEntry, hashLeaf } from '../../domain/audit/audit.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { endHeldCall } from '../approvals/approvals.ts';
import type { Tx } from '../db.ts';

interface RecalledCall {
  readonly txn: string;
  readonly state: string;
  readonly idle: boolean;
}

/**
 * What older epochs of a run have not sent ends here: held calls, which a person could still approve, and calls between two
 * attempts of which nothing is unknown. Of the rest nothing more is sent, except to find out; they keep the run undrained.
 * Calls are locked before who looks after them, as whoever settles one does it. Answers the calls that were ended.
 */
export async function withdrawOlderEpochs(tx: Tx, fence: RunEpoch): Promise<readonly string[]> {
  const why = `its run was taken over, in epoch ${fence.epoch}`;
  const held = await endOlderHeldCalls(tx, fence, why);
  const idle = (await recallOlderCalls(tx, fence)).filter((call) => call.idle);
  if (idle.length > 0) await endIdleCalls(tx, idle, why);
  return [...held, ...idle.map(({ txn }) => txn)];
}

async function endOlderHeldCalls(tx: Tx, { run, epoch }: RunEpoch, why: string): Promise<readonly string[]> {
  const held = await tx.run<{ txn: string }>({
    name: 'held-below',
    text: `select c.txn from open_calls o join calls c on c.txn = o.txn
      where o.run = $1 and c.epoch < $2 and c.state = 'held' order by c.txn`,
    values: [run, epoch],
  });
  const ended: string[] = [];
  for (const { txn } of held)
    if (await endHeldCall(tx, txn, 'cancelled', why, buildAuditEntry('call_cancelled', { txn, why }))) ended.push(txn);
  return ended;
}

async function recallOlderCalls(tx: Tx, { run, epoch }: RunEpoch): Promise<readonly RecalledCall[]> {
  const values = [run, epoch];
  await tx.run({
    name: 'lock-below',
    text: `select txn from calls where txn in (select txn from open_calls where run = $1) and epoch < $2 and settled_at is null and not fenced
      order by txn for update`,
    values,
  });
  return tx.run<RecalledCall>({
    name: 'fence-below',
    text: `update calls set recalled = true, fenced = true
      where txn in (select txn from open_calls where run = $1) and epoch < $2 and settled_at is null and not fenced
      returning txn, state, not attempt_open and unresolved = 0 as idle`,
    values,
  });
}

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
      ), ended as (
        update calls c set state = e.state, fence = c.fence + 1, settled_at = now(), outcome = 'no_effect', problem = e.problem, detail = $6,
          evidence = 'gateway', leaf = e.leaf
        from ending e where c.txn = e.txn returning c.txn
      ), closed as (
        delete from open_calls o using ended e where o.txn = e.txn
      )
      insert into audit_queue (entry) select entry from ending`,
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
