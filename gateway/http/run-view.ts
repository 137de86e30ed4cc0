import type { Run } from '../domain/controls/run.ts';
import type { RunView } from '../flow/controls/runs.ts';
import type { RunLineView } from './schemas/run-schemas.ts';
import { taintView } from './taint-view.ts';

/** A run in a list. `full` adds the agent, for people. */
export function runLine(run: Run, full: boolean): RunLineView {
  return {
    run: run.id,
    name: run.name,
    epoch: run.epoch,
    drained: run.openCount === 0,
    createdAt: run.createdAt.toISOString(),
    takenAt: run.takenAt.toISOString(),
    lastSeenAt: run.lastSeenAt.toISOString(),
    ttlSeconds: run.ttlMs === null ? null : run.ttlMs / 1000,
    abandoned: run.abandoned,
    endedAt: run.endedAt?.toISOString() ?? null,
    checkpointAt: run.checkpointAt?.toISOString() ?? null,
    tainted: taintView(run.tainted),
    ...(full ? { agent: run.agent } : {}),
  };
}

/** A run as the holder of `epoch` sees it. The checkpoint is inserted as stored text, to avoid parsing it. */
export function runText({ run, open, checkpoint }: RunView, epoch: number, full: boolean): string {
  const view = {
    ...runLine(run, full),
    epoch,
    drained: open.length === 0,
    open: open.map(({ createdAt, ...call }) => ({ ...call, createdAt: createdAt.toISOString() })),
  };
  return `${JSON.stringify(view).slice(0, -1)},"checkpoint":${checkpoint ?? 'null'}}`;
}
