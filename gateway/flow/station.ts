import type { Registry } from '../../adapters/registry.ts';
import type { Policies } from '../domain/policy.ts';
import type { Watch } from '../domain/watch.ts';
import type { Calls } from '../ledger/calls.ts';
import type { Database } from '../ledger/db.ts';
import type { Pasts } from '../ledger/history.ts';
import type { Lease } from '../ledger/processes.ts';
import type { Switches } from '../ledger/switches.ts';
import type { Undos } from '../ledger/undos.ts';
import type { KnownTaints } from './exposure.ts';
import type { Finals } from './finals.ts';
import type { Imports } from './imports.ts';
import type { LogWatch } from './log-watch.ts';

export interface Log {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/**
 * Named points of a call's way at which the fault tests kill the process. What a crash at each leaves is written where
 * it is reached.
 */
export const POINTS = [
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
export type Point = (typeof POINTS)[number];

/** Everything the use cases stand on. */
export interface Station {
  readonly db: Database;
  readonly calls: Calls;
  readonly undos: Undos;
  readonly finals: Finals;
  readonly pasts: Pasts;
  readonly taints: KnownTaints;
  readonly lease: Lease;
  readonly switches: Switches;
  /** Whether the log is still the one that was signed. */
  readonly logWatch: LogWatch;
  readonly adapters: Registry;
  /** Those on disk, with the tools that MCP servers bring in. */
  readonly policies: () => Policies;
  readonly imports: Imports;
  /** Part of every txn id: two deployments never share one. */
  readonly deployment: string;
  /** Encrypts what a redacting tool's re-send needs, and stands behind digests of what is not stored; lives outside the database. */
  readonly sealingKey: Buffer;
  /** How many calls of one agent may wait for people at once. */
  readonly mostPending: number;
  readonly log: Log;
  readonly watch: Watch;
  readonly reach: (point: Point) => void;
}
