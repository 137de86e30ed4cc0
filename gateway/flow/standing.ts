import type { JsonObject } from '../domain/json.ts';
import { readBacklog } from '../ledger/backlog.ts';
import { readHead } from '../ledger/log-tail.ts';
import { countWaiting, livingProcesses, type Tally, tallyCalls } from '../ledger/standing.ts';
import type { Station } from './station.ts';
import { breakers } from './switching.ts';

/** So many of the newest calls are counted; beyond them the answer says that there are more. */
const MOST_CALLS = 10_000;
const MOST_WAITING = 1_000;
const MOST_PROCESSES = 100;
const MOST_TOOLS = 50;
/** However many people look, the ledger is asked this often. */
const FRESH_MS = 1_000;
const MINUTES = 60;
const DAY_MINUTES = 1_440;

/** How things stand, in one look that costs the same whatever the size of the ledger. */
export class Standing {
  readonly #station: Station;
  #last: { readonly at: number; readonly view: Promise<JsonObject> } | undefined;

  constructor(station: Station) {
    this.#station = station;
  }

  read(): Promise<JsonObject> {
    const at = performance.now();
    if (this.#last !== undefined && at - this.#last.at < FRESH_MS) return this.#last.view;
    const view = this.#look();
    this.#last = { at, view };
    // One that failed is nobody else's answer.
    view.catch(() => {
      if (this.#last?.view === view) this.#last = undefined;
    });
    return view;
  }

  async #look(): Promise<JsonObject> {
    const { db, lease, logWatch, switches } = this.#station;
    const [tallies, backlog, waiting, processes, head] = await Promise.all([
      tallyCalls(db, MOST_CALLS),
      readBacklog(db, MOST_WAITING),
      countWaiting(db, MOST_WAITING),
      livingProcesses(db, MOST_PROCESSES),
      readHead(db),
    ]);
    return {
      at: new Date().toISOString(),
      calls: callsView(tallies),
      open: {
        held: backlog.held,
        inDoubt: backlog.inDoubt,
        underWay: backlog.underWay,
        more: backlog.more,
        recoveryLagSeconds: backlog.recoveryLag,
      },
      approvals: { pending: counted(waiting.approvals) },
      sagas: {
        open: counted(waiting.sagasOpen),
        rollingBack: counted(waiting.sagasRollingBack),
        parked: counted(waiting.sagasParked),
      },
      breakers: breakers(this.#station).map((breaker) => ({ ...breaker })),
      frozen: switches
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
        doubt: logWatch.doubt() ?? null,
      },
    };
  }
}

/** A number, and whether it is only where counting stopped. */
function counted(count: number): JsonObject {
  return { count, more: count >= MOST_WAITING };
}

export function callsView(tallies: readonly Tally[]): JsonObject {
  const total = sum(tallies);
  const isCut = total >= MOST_CALLS;
  const oldest = tallies.reduce((least, tally) => Math.min(least, tally.oldest.getTime()), Number.POSITIVE_INFINITY);
  const reach = isCut ? (Date.now() - oldest) / 60_000 : DAY_MINUTES;
  const within = (minutes: number) => {
    const calls = tallies.filter((tally) => tally.minutes < minutes || minutes === DAY_MINUTES);
    return { count: sum(calls), more: reach < minutes, states: byState(calls) };
  };
  return {
    counted: total,
    since: isCut ? new Date(oldest).toISOString() : null,
    minute: within(1),
    hour: within(MINUTES),
    day: within(DAY_MINUTES),
    // The oldest minute first, as one reads a chart.
    perMinute: Array.from({ length: MINUTES }, (_, place) =>
      byState(tallies.filter((tally) => tally.minutes === MINUTES - 1 - place)),
    ),
    tools: toolsView(tallies),
  };
}

function toolsView(tallies: readonly Tally[]): JsonObject[] {
  const byTool = new Map<string, Tally[]>();
  for (const tally of tallies) byTool.set(tally.tool, [...(byTool.get(tally.tool) ?? []), tally]);
  return [...byTool]
    .map(([tool, calls]) => ({ tool, count: sum(calls), states: byState(calls) }))
    .sort((a, b) => b.count - a.count || (a.tool < b.tool ? -1 : 1))
    .slice(0, MOST_TOOLS);
}

function byState(tallies: readonly Tally[]): Record<string, number> {
  const states: Record<string, number> = {};
  for (const { state, calls } of tallies) states[state] = (states[state] ?? 0) + calls;
  return states;
}

function sum(tallies: readonly Tally[]): number {
  return tallies.reduce((count, { calls }) => count + calls, 0);
}
