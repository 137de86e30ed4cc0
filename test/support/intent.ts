import { randomUUID } from 'node:crypto';
import type { Intent } from '../../gateway/ledger/calls/calls.ts';

/** An intent as a claim writes it, for tests that call the ledger directly. */
export function buildIntent(owner: string, changes: Partial<Intent> = {}): Intent {
  return {
    txn: randomUUID(),
    agent: 'a',
    tool: 't',
    key: 'k',
    identity: 'key',
    fingerprint: Buffer.alloc(32, 1),
    kind: 'none',
    fence: 1,
    state: 'sending',
    owner,
    dueInMs: null,
    keyLifetimeMs: null,
    policyVersion: 'v',
    rule: 'r',
    args: '{}',
    request: null,
    sealed: null,
    saga: null,
    dependsOn: null,
    run: null,
    epoch: null,
    undo: null,
    undoOf: null,
    undoTries: null,
    entry: '{}',
    ...changes,
  };
}
