/** The parts of the admin API that the console reads. /openapi.json describes all of it. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type States = Record<string, number>;
export type Child = Node | string | number | null | undefined | false | readonly Child[];

export interface Counted {
  count: number;
  more: boolean;
}
export interface Breaker {
  upstream: string;
  state: 'closed' | 'open' | 'half_open';
  by: string;
  reason: string | null;
}
export interface Frozen {
  scope: string;
  by: string;
  reason: string;
  at: string;
}
export interface Stats {
  at: string;
  gateway: string;
  you: { person: string; roles: string[]; groups: string[] };
  calls: {
    counted: number;
    since: string | null;
    minute: Counted & { states: States };
    hour: Counted & { states: States };
    day: Counted & { states: States };
    perMinute: States[];
    tools: { tool: string; count: number; states: States }[];
  };
  open: { held: number; inDoubt: number; underWay: number; more: boolean; recoveryLagSeconds: number };
  approvals: { pending: Counted };
  sagas: { open: Counted; rollingBack: Counted; parked: Counted };
  breakers: Breaker[];
  frozen: Frozen[];
  policies: { version: string; refused: string[] };
  processes: { process: string; pid: number; startedAt: string; answers: boolean }[];
  log: { size: number; sealedAt: string | null; waiting: number; doubt: string | null };
}

export interface Undo {
  state: string;
  kind: string | null;
  tool: string | null;
  args?: Json;
  txn: string | null;
  reason: string | null;
}
export interface TimelineEvent {
  at: string;
  what: string;
  [detail: string]: Json | undefined;
}
export interface Call {
  txn: string;
  tool: string;
  state: string;
  agent: string;
  hold?: { kind: string; until: string };
  result: Json;
  outcome: string | null;
  problem: { code: string; detail: string } | null;
  saga: string | null;
  run: string | null;
  undo: Undo;
  undoes?: string;
  attempts: number;
  receipt: { leaf: string } | null;
  key: string | null;
  args: Json;
  createdAt: string;
  settledAt: string | null;
  erasedAt: string | null;
  kind: string;
  policyVersion: string;
  rule: string | null;
  evidence: string | null;
  resolvedBy: string | null;
  contradiction: string | null;
  timeline?: TimelineEvent[];
}
export interface Approval {
  txn: string;
  agent: string;
  tool: string;
  state: string;
  args: Json;
  target: { upstream: string; method: string; url: string } | null;
  undo: { kind: string; tool: string | null } | null;
  rule: string | null;
  saga: string | null;
  run: string | null;
  facts?: Json;
  policyVersion: string | null;
  digest: string | null;
  groups: string[];
  quorum: number;
  requestedAt: string;
  expiresAt: string;
  hold: 'approval' | 'delay';
  leavesAt: string | null;
  voters: { voter: string; verdict: string; reason?: string }[];
  decidedAt: string | null;
  votes: { person: string; verdict: string; reason: string; at: string }[];
}
export interface Step {
  txn: string;
  tool: string;
  state: string;
  dependsOn: string[];
  undo: Undo;
  waived?: boolean;
}
export interface SagaLine {
  saga: string;
  name: string | null;
  state: string;
  reason: string | null;
  createdAt: string;
  expiresAt: string | null;
  endedAt: string | null;
  agent: string;
  by: string | null;
}
export interface Saga extends SagaLine {
  steps: Step[];
  savepoints: { name: string; after: number }[];
}
export interface Plan {
  digest: string;
  wouldEnd: string;
  plan: {
    txn: string;
    tool: string;
    state: string;
    does: 'undo' | 'nothing' | 'wait' | 'cancel' | 'cannot';
    wave: number;
    why: string | null;
    blockedBy: string | null;
    undo: Undo;
  }[];
  kept: { txn: string; tool: string }[];
}
export interface Page<T> {
  items: T[];
  cursor: string | null;
}
export interface LogEntry {
  index: number;
  leaf: string;
  entry: Record<string, Json> & { what: string; at: string };
}
export interface GateEvent {
  id: string | null;
  name: string;
  data: Record<string, Json>;
}

/** What the page offers to a view. */
export interface Context {
  you: Stats['you'];
  /** Loads and draws the view again. */
  refresh: () => Promise<void>;
  /** Recent events, newest first. */
  recentEvents: readonly GateEvent[];
  hasRole: (role: 'approver' | 'operator' | 'admin') => boolean;
  /** Shows a short message. */
  notify: (text: string) => void;
}
export interface View<T = unknown> {
  title: string;
  load: () => Promise<T>;
  draw: (data: T, context: Context) => Child;
  /** Whether an event may have changed what the view shows. */
  isAffectedBy: (event: GateEvent) => boolean;
}
