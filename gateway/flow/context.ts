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
 * Named points in the life of a call at which the fault tests kill the process. The code that reaches a point says what
 * a crash there leaves.
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

/** The stores, adapters and settings that every use case shares. One per process. */
export interface Context {
  readonly db: Database;
  readonly calls: CallStore;
  readonly undos: UndoStore;
  readonly replayCache: ReplayCache;
  readonly historyReader: HistoryReader;
  readonly taintCache: TaintCache;
  readonly lease: Lease;
  readonly controlFlags: ControlFlags;
  /** Checks that the audit log still matches its signed checkpoints. */
  readonly logMonitor: LogMonitor;
  readonly adapters: AdapterRegistry;
  /** The policies on disk, merged with the tools imported from MCP servers. */
  readonly policies: () => Policies;
  readonly imports: McpImports;
  /** Part of every txn, so that two deployments never share one. */
  readonly deployment: string;
  /** Encrypts the payloads of redacting tools and keys the hashes of lock names. Kept outside the database. */
  readonly sealingKey: Buffer;
  /** How many calls of one agent may wait for approval at once. */
  readonly maxPendingApprovals: number;
  readonly log: AppLogger;
  readonly telemetry: Telemetry;
  /** Marks a kill point. Does nothing unless a fault test asks for a crash there. */
  readonly reachKillPoint: (point: KillPoint) => void;
}
