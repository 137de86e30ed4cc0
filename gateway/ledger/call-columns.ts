import type { Advance, Intent } from './calls.ts';
import type { Column } from './columns.ts';

/** A claim, and its place among those of its batch: steps of a saga are numbered in the order they came in. */
interface Wish {
  readonly intent: Intent;
  readonly place: number;
}

export const CLAIM_COLUMNS: readonly Column<Wish>[] = [
  ['txn', 'uuid', ({ intent }) => intent.txn],
  ['agent', 'text', ({ intent }) => intent.agent],
  ['tool', 'text', ({ intent }) => intent.tool],
  ['key', 'text', ({ intent }) => intent.key],
  ['identity', 'text', ({ intent }) => intent.identity],
  ['fingerprint', 'bytea', ({ intent }) => intent.fingerprint],
  ['kind', 'text', ({ intent }) => intent.kind],
  ['state', 'text', ({ intent }) => intent.state],
  ['owner', 'uuid', ({ intent }) => intent.owner],
  ['due_ms', 'float8', ({ intent }) => intent.dueInMs],
  ['lifetime_ms', 'float8', ({ intent }) => intent.keyLifetimeMs],
  ['policy_version', 'text', ({ intent }) => intent.policyVersion],
  ['rule', 'text', ({ intent }) => intent.rule],
  ['args', 'text', ({ intent }) => intent.args],
  ['request', 'text', ({ intent: { request } }) => (request === null ? null : JSON.stringify(request))],
  ['sealed', 'bytea', ({ intent }) => intent.sealed],
  ['entry', 'text', ({ intent }) => intent.entry],
  ['fence', 'int', ({ intent }) => intent.fence],
  ['saga', 'uuid', ({ intent }) => intent.saga],
  ['depends_on', 'text', ({ intent: { dependsOn } }) => (dependsOn === null ? null : `{${dependsOn.join(',')}}`)],
  ['undo', 'text', ({ intent: { undo } }) => (undo === null ? null : JSON.stringify(undo))],
  ['undo_of', 'uuid', ({ intent }) => intent.undoes?.txn ?? null],
  ['tries', 'int', ({ intent }) => intent.undoes?.tries ?? null],
  ['place', 'int', ({ place }) => place],
  ['run', 'uuid', ({ intent }) => intent.run],
  ['epoch', 'int', ({ intent }) => intent.epoch],
];

export const ADVANCE_COLUMNS: readonly Column<Advance>[] = [
  ['txn', 'uuid', (change) => change.txn],
  ['fence', 'int', (change) => change.fence],
  ['evident', 'bool', (change) => change.evident],
  ['state', 'text', (change) => change.state],
  ['attempt', 'int', (change) => change.attempt],
  ['attempt_open', 'bool', (change) => change.attemptOpen],
  ['unresolved', 'int', (change) => change.unresolved],
  ['unknown_ms', 'float8', (change) => change.unknownSinceMs],
  ['custody', 'text', (change) => change.custody],
  ['due_ms', 'float8', (change) => change.dueInMs],
  ['outcome', 'text', (change) => change.outcome],
  ['problem', 'text', (change) => change.problem],
  ['detail', 'text', (change) => change.detail],
  ['answer', 'text', (change) => change.answer],
  ['evidence', 'text', (change) => change.evidence],
  ['resolved_by', 'text', (change) => change.resolvedBy],
  ['leaf', 'bytea', (change) => change.leaf],
  ['event', 'text', ({ event }) => (event === null ? null : JSON.stringify([event]))],
  ['entry', 'text', (change) => change.entry],
  ['step', 'int', (change) => change.step],
  ['before', 'text', ({ undo }) => undo?.before ?? null],
  ['undo_args', 'text', ({ undo }) => undo?.args ?? null],
  ['undo_sealed', 'bytea', ({ undo }) => undo?.sealed ?? null],
  ['undo_reason', 'text', ({ undo }) => undo?.reason ?? null],
];
