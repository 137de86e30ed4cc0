import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { GatewayError } from '../../domain/errors.ts';
import { enqueueAuditEntry } from '../../ledger/audit/audit-queue.ts';
import type { Services } from '../calls/execute-call.ts';
import type { Operator } from '../controls/freezes-and-breakers.ts';
import { requireNewestCheckpoint } from './read-log.ts';

export interface LogAcceptance {
  /** False if the log was not in doubt. */
  readonly accepted: boolean;
  readonly checkpoint: string;
}

/**
 * Accepts the log in the database on a person's decision, although the anchors contradict it. The log first records who
 * accepted it, why, and which checkpoints it contradicts. The old checkpoints stay in the anchors, under another name.
 *
 * A crash here leaves the log in doubt; accepting it again is safe.
 */
export async function acceptLog(services: Services, { person, reason }: Operator): Promise<LogAcceptance> {
  const { db, logMonitor } = services.ctx;
  await logMonitor.verify();
  const fault = logMonitor.findFault();
  if (fault === undefined) return { accepted: false, checkpoint: await requireNewestCheckpoint(services) };
  const anchorNotes = await logMonitor.readAnchorNotes();
  const entry = buildAuditEntry('log_accepted', { person, reason, doubt: fault, kept: anchorNotes });
  await enqueueAuditEntry(db, entry);
  await services.sequencer.seal(0, true);
  await logMonitor.acceptCurrentLog();
  const remainingFault = logMonitor.findFault();
  if (remainingFault !== undefined) throw new GatewayError('conflict', remainingFault);
  return { accepted: true, checkpoint: await requireNewestCheckpoint(services) };
}
