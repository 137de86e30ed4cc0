import type { AdapterRegistry } from '../../adapters/registry.ts';
import type { Policies } from '../domain/policy.ts';
import type { Telemetry } from '../domain/telemetry.ts';
import type { CallStore } from '../ledger/calls/calls.ts';
import type { HistoryReader } from '../ledger/calls/history.ts';
import type { ControlFlags } from '../ledger/controls/control-flags.ts';
import type { Database } from '../ledger/db.ts';
import type { Lease } from '../ledger/process-lease.ts';
import type { UndoStore } from '../ledger/sagas/undos.ts';
import type { LogMonitor } from './audit/log-monitor.ts';
import type { ReplayCache } from './calls/replay-cache.ts';
import type { TaintCache } from './controls/taint.ts';
import type { McpImports } from './mcp/imports.ts';

export interface AppLogger {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/**
 * Named points of a call's way at which the fault tests kill the process. What a crash at each leaves is written where
 * it is reached.
 */
export const KILL_POINTS = [
  'claiming',
  'claimed',
  'sending',
  'answered',
  'settled',
  'replying',
  'taken',
  'probed',
  'parking',
  'parked',
  'observed',
  'rolling_back',
  'marked',
  'undoing',
  'finishing',
  'finished',
  'sealing',
  'sealed',
  'anchored',
] as const;
export type KillPoint = (typeof KILL_POINTS)[number];

/** Everything the use cases stand on. */
export interface Context {
  readonly db: Database;
  readonly calls: CallStore;
  readonly undos: UndoStore;
  readonly finals: ReplayCache;
  readonly pasts: HistoryReader;
  readonly taints: TaintCache;
  readonly lease: Lease;
  readonly switches: ControlFlags;
  /** Whether the log is still the one that was signed. */
  readonly logWatch: LogMonitor;
  readonly adapters: AdapterRegistry;
  /** Those on disk, with the tools that MCP servers bring in. */
  readonly policies: () => Policies;
  readonly imports: McpImports;
  /** Part of every txn id: two deployments never share one. */
  readonly deployment: string;
  /** Encrypts what a redacting tool's re-send needs, and stands behind digests of what is not stored; lives outside the database. */
  readonly sealingKey: Buffer;
  /** How many calls of one agent may wait for people at once. */
  readonly mostPending: number;
  readonly log: AppLogger;
  readonly watch: Telemetry;
  readonly reach: (point: KillPoint) => void;
}
