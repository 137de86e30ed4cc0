import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { GatewayError } from '../../domain/errors.ts';
import { enqueueAuditEntry } from '../../ledger/audit/audit-queue.ts';
import type { Services } from '../calls/execute-call.ts';
import type { Operator } from '../controls/freezes-and-breakers.ts';
import { requireNewestCheckpoint } from './read-log.ts';

export interface LogAcceptance {
  /** False: there was nothing to accept. */
  readonly accepted: boolean;
  readonly checkpoint: string;
}

/**
 * A person takes the log as it is in the database for the true one, although what was kept of it says otherwise. Who, why,
 * and what it contradicts goes into the log first, and the checkpoints that are set aside stay where they are, under another
 * name. A crash in here leaves the log in doubt, and it is done again.
 */
export async function acceptLog(services: Services, { person, reason }: Operator): Promise<LogAcceptance> {
  const { db, logWatch } = services.station;
  await logWatch.verify();
  const doubt = logWatch.findFault();
  if (doubt === undefined) return { accepted: false, checkpoint: await requireNewestCheckpoint(services) };
  const kept = await logWatch.readAnchorNotes();
  await enqueueAuditEntry(db, buildAuditEntry('log_accepted', { person, reason, doubt, kept }));
  await services.sequencer.seal(0, true);
  await logWatch.acceptCurrentLog();
  const left = logWatch.findFault();
  if (left !== undefined) throw new GatewayError('conflict', left);
  return { accepted: true, checkpoint: await requireNewestCheckpoint(services) };
}
