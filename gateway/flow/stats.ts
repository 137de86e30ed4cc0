import type { JsonObject } from '../domain/json.ts';
import { readBacklog } from '../ledger/audit/backlog.ts';
import { readLogHead } from '../ledger/audit/log-tail.ts';
import { type CallCount, countRecentCalls, countWaiting, listLiveProcesses } from '../ledger/stats.ts';
import type { Context } from './context.ts';
import { listBreakers } from './controls/freezes-and-breakers.ts';

/** Only this many of the newest calls are counted. Beyond that the answer says that there are more. */
const MAX_CALLS = 10_000;
const MAX_WAITING = 1_000;
const MAX_PROCESSES = 100;
const MAX_TOOLS = 50;
/** The ledger is read at most this often, however many people ask. */
const MAX_AGE_MS = 1_000;
const MINUTES_PER_HOUR = 60;
const MINUTES_PER_DAY = 1_440;

/** The numbers of the overview. Reading them costs the same whatever the size of the ledger. */
export class Stats {
  readonly #ctx: Context;
  #last: { readonly at: number; readonly view: Promise<JsonObject> } | undefined;

  constructor(ctx: Context) {
    this.#ctx = ctx;
  }

  read(): Promise<JsonObject> {
    const at = performance.now();
    if (this.#last !== undefined && at - this.#last.at < MAX_AGE_MS) return this.#last.view;
    const view = this.#readView();
    this.#last = { at, view };
    // Do not cache a failed read.
    view.catch(() => {
      if (this.#last?.view === view) this.#last = undefined;
    });
    return view;
  }

  async #readView(): Promise<JsonObject> {
    const { db, lease, logMonitor, controlFlags } = this.#ctx;
    const [tallies, backlog, waiting, processes, head] = await Promise.all([
      countRecentCalls(db, MAX_CALLS),
      readBacklog(db, MAX_WAITING),
      countWaiting(db, MAX_WAITING),
      listLiveProcesses(db, MAX_PROCESSES),
      readLogHead(db),
    ]);
    return {
      at: new Date().toISOString(),
      calls: summarizeCalls(tallies),
      open: {
        held: backlog.held,
        inDoubt: backlog.inDoubt,
        underWay: backlog.underWay,
        more: backlog.hasMore,
        recoveryLagSeconds: backlog.recoveryLag,
      },
      approvals: { pending: toCappedCount(waiting.approvals) },
      sagas: {
        open: toCappedCount(waiting.sagasOpen),
        rollingBack: toCappedCount(waiting.sagasRollingBack),
        parked: toCappedCount(waiting.sagasParked),
      },
      breakers: listBreakers(this.#ctx).map((breaker) => ({ ...breaker })),
      frozen: controlFlags
        .list()
        .filter(({ scope }) => /^(?:all$|agent:|tool:)/.test(scope))
        .map(({ scope, by, reason, at }) => ({ scope, by, reason, at: at.toISOString() })),
      processes: processes.map(({ id, pid, startedAt }) => ({
        process: id,
        pid,
        startedAt: startedAt.toISOString(),
        answers: id === lease.id,
      })),
      log: {
        size: head.size,
        sealedAt: head.sealedAt?.toISOString() ?? null,
        waiting: backlog.auditQueue,
        doubt: logMonitor.findFault() ?? null,
      },
    };
  }
}

/** A count, and whether counting stopped at the maximum. */
function toCappedCount(count: number): JsonObject {
  return { count, more: count >= MAX_WAITING };
}

export function summarizeCalls(tallies: readonly CallCount[]): JsonObject {
  const total = sumCalls(tallies);
  const isCut = total >= MAX_CALLS;
  const oldest = tallies.reduce((least, tally) => Math.min(least, tally.oldest.getTime()), Number.POSITIVE_INFINITY);
  const coveredMinutes = isCut ? (Date.now() - oldest) / 60_000 : MINUTES_PER_DAY;
  const within = (minutes: number) => {
    const calls = tallies.filter((tally) => tally.minutes < minutes || minutes === MINUTES_PER_DAY);
    return { count: sumCalls(calls), more: coveredMinutes < minutes, states: countByState(calls) };
  };
  return {
    counted: total,
    since: isCut ? new Date(oldest).toISOString() : null,
    minute: within(1),
    hour: within(MINUTES_PER_HOUR),
    day: within(MINUTES_PER_DAY),
    // Oldest minute first, as a chart is read.
    perMinute: Array.from({ length: MINUTES_PER_HOUR }, (_, index) =>
      countByState(tallies.filter((tally) => tally.minutes === MINUTES_PER_HOUR - 1 - index)),
    ),
    tools: summarizeTools(tallies),
  };
}

function summarizeTools(tallies: readonly CallCount[]): JsonObject[] {
  const byTool = new Map<string, CallCount[]>();
  for (const tally of tallies) byTool.set(tally.tool, [...(byTool.get(tally.tool) ?? []), tally]);
  return [...byTool]
    .map(([tool, calls]) => ({ tool, count: sumCalls(calls), states: countByState(calls) }))
    .sort((a, b) => b.count - a.count || (a.tool < b.tool ? -1 : 1))
    .slice(0, MAX_TOOLS);
}

function countByState(tallies: readonly CallCount[]): Record<string, number> {
  const states: Record<string, number> = {};
  for (const { state, calls } of tallies) states[state] = (states[state] ?? 0) + calls;
  return states;
}

function sumCalls(tallies: readonly CallCount[]): number {
  return tallies.reduce((count, { calls }) => count + calls, 0);
}
