import { auditEntry } from '../domain/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import { logEntry } from '../ledger/audit-queue.ts';
import type { Flow } from './call-tool.ts';
import { readNewest } from './read-log.ts';
import type { Hand } from './switching.ts';

export interface Accepted {
  /** False: there was nothing to accept. */
  readonly accepted: boolean;
  readonly checkpoint: string;
}

/**
 * A person takes the log as it is in the database for the true one, although what was kept of it says otherwise. Who, why,
 * and what it contradicts goes into the log first, and the checkpoints that are set aside stay where they are, under another
 * name. A crash in here leaves the log in doubt, and it is done again.
 */
export async function acceptLog(flow: Flow, { person, reason }: Hand): Promise<Accepted> {
  const { db, logWatch } = flow.station;
  await logWatch.look();
  const doubt = logWatch.doubt();
  if (doubt === undefined) return { accepted: false, checkpoint: await readNewest(flow) };
  const kept = await logWatch.kept();
  await logEntry(db, auditEntry('log_accepted', { person, reason, doubt, kept }));
  await flow.sequencer.seal(0, true);
  await logWatch.accept();
  const left = logWatch.doubt();
  if (left !== undefined) throw new GatewayError('conflict', left);
  return { accepted: true, checkpoint: await readNewest(flow) };
}
