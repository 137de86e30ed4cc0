import { randomInt } from 'node:crypto';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type CallRecord, createCallRecord } from '../../domain/calls/call-record.ts';
import { encrypt } from '../../domain/calls/encryption.ts';
import { pathsUnder, redact } from '../../domain/calls/redact.ts';
import { computeFingerprint, deriveTxnId } from '../../domain/calls/txn-id.ts';
import { canonicalize, NotCanonicalError } from '../../domain/canonical.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError, type Tool } from '../../domain/policy.ts';
import type { SagaStep } from '../../domain/sagas/saga.ts';
import { parseTraceContext } from '../../domain/telemetry.ts';
import type { ClaimGuards, NewCall } from '../../ledger/calls/claim.ts';
import { encodePayload, type Payload } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { buildLockRequest } from '../controls/locks.ts';
import { collectUndoSecrets, decodeUndoArgs } from './undo.ts';

/** A compensation that is ready to be claimed. */
export interface PreparedCompensation {
  readonly newCall: NewCall;
  readonly tool: Tool;
  readonly payload: Payload;
  /** The locks of the undo tool. */
  readonly guards: ClaimGuards | undefined;
}

/**
 * Builds the compensation of a step under the policies in force.
 *
 * Returns a string when the step cannot be undone, with the reason. Returns undefined when the caller should try later.
 */
export async function prepareCompensation(
  ctx: Context,
  step: SagaStep,
): Promise<PreparedCompensation | string | undefined> {
  const call = await ctx.calls.read(step.txn);
  if (call === undefined) return 'the call no longer exists';
  const tool = ctx.policies().tools.get(step.undo?.tool ?? '');
  if (tool === undefined) return `the undo tool ${step.undo?.tool} is no longer in the policies`;
  if (tool.disabled !== undefined) return `${tool.name} is disabled: ${tool.disabled}`;
  const args = decodeUndoArgs(ctx.sealingKey, call);
  if (typeof args === 'string') return args;
  const faults = tool.faults(args);
  if ('retryAfterMs' in faults)
    return faults.wasSkipped
      ? undefined
      : `checking the undo arguments against the schema of ${tool.name} takes too long`;
  if (faults.length > 0) return `the undo arguments do not match the schema of ${tool.name}: ${faults.join('; ')}`;
  const { agent } = call;
  const txn = deriveTxnId(ctx.deployment, agent, { by: 'undo', of: call.txn, generation: step.undoTries });
  try {
    // The compensation continues the trace of its step, so the trace of the step shows the undo.
    const trace = parseTraceContext((header) => call.request?.headers[header]);
    const request = ctx.adapters.getAdapter(tool).prepare(tool, { args, agent, trace }, txn);
    const payload = { args, request, secrets: collectUndoSecrets(ctx.sealingKey, call) };
    const locks = buildLockRequest(ctx, tool, { txn, agent, args, saga: call.saga, run: call.run });
    const guards = locks === undefined ? undefined : { charges: [], approval: undefined, locks };
    return { newCall: buildCompensation(ctx, call, step.undoTries, { tool, txn, payload }), tool, payload, guards };
  } catch (error) {
    // These errors concern this step only. Throwing one would stop the moves of all other steps.
    const isStepError =
      error instanceof GatewayError || error instanceof ExpressionError || error instanceof NotCanonicalError;
    if (isStepError) return error.message;
    throw error;
  }
}

function buildCompensation(
  ctx: Context,
  call: CallRecord,
  tries: number,
  { tool, txn, payload }: { readonly tool: Tool; readonly txn: string; readonly payload: Payload },
): NewCall {
  const { version } = ctx.policies();
  const args = canonicalize(payload.args);
  const fingerprint = computeFingerprint(tool.name, args);
  const stored = encodeUndoPayload(ctx.sealingKey, txn, tool, payload, args, call);
  const record = createCallRecord({
    txn,
    agent: call.agent,
    tool: tool.name,
    identity: 'undo',
    fingerprint,
    kind: tool.effect === 'read' ? 'read' : tool.once.by,
    fence: randomInt(1, 1_000_000_000),
    state: tool.observe === undefined ? 'sending' : 'ready',
    owner: ctx.lease.id,
    keyLifetimeMs: tool.once.by === 'key' ? tool.once.lifetimeMs : null,
    policyVersion: version,
    rule: `undo of ${call.tool} ${call.txn}`,
    args: stored.args,
    request: stored.request,
    sealed: stored.sealed,
    saga: call.saga,
    undoOf: call.txn,
  });
  return {
    record,
    dueInMs: null,
    undoTries: tries,
    entry: buildAuditEntry('undo_claimed', {
      txn,
      of: call.txn,
      agent: call.agent,
      tool: tool.name,
      fingerprint: fingerprint.toString('hex'),
      policy: version,
    }),
  };
}

/** Values that the tool of the step redacts stay redacted in the shown arguments of the compensation. */
function encodeUndoPayload(key: Buffer, txn: string, tool: Tool, payload: Payload, args: string, call: CallRecord) {
  if (call.undoSealed === null) return encodePayload(key, txn, tool, payload, args);
  const shown = JSON.parse(call.undoArgs ?? '{}') as JsonObject;
  return {
    args: canonicalize(redact(shown, pathsUnder('args', tool.redact))),
    request: null,
    sealed: encrypt(key, txn, JSON.stringify(payload)),
  };
}
