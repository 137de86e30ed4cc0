import { canonical } from '../domain/canonical.ts';
import { ERRORS, type ErrorCode, GatewayError } from '../domain/errors.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Tool } from '../domain/policy.ts';
import { pathsUnder, redact } from '../domain/redact.ts';
import { isFinal } from '../domain/states.ts';
import { fingerprint as fingerprintOf } from '../domain/txn-id.ts';
import { coversByName, explain } from '../policy/decide.ts';
import type { ToolCall } from './call-tool.ts';
import { identifyCall } from './identify-call.ts';
import type { Station } from './station.ts';

/** Decides and explains everything that the call would meet, sends nothing and binds nothing. */
export async function dryRun(station: Station, asked: ToolCall): Promise<JsonObject> {
  const policies = station.policies();
  const { decision, tried } = explain(policies, asked.agent, asked.tool, {
    args: asked.args,
    saga: null,
    run: null,
    now: Date.now(),
  });
  const tool = policies.tools.get(asked.tool);
  const explained: JsonObject = {
    dryRun: true,
    tool: asked.tool,
    policyVersion: policies.version,
    decision: {
      allowed: decision.allowed,
      rule: decision.rule?.id ?? null,
      reason: decision.allowed ? null : decision.reason,
      tried: tried.map(({ rule, matched, why }) => ({ rule: rule.id, verdict: rule.verdict, matched, why })),
    },
  };
  const faults = tool !== undefined && coversByName(asked.agent, tool) ? tool.faults(asked.args) : [];
  if (faults.length > 0) return { ...explained, faults: [...faults], wouldAnswer: refusal('invalid_arguments') };
  if (tool === undefined || !decision.allowed) {
    return { ...explained, wouldAnswer: refusal(decision.allowed ? 'unknown_tool' : decision.code) };
  }
  try {
    return { ...explained, ...(await whatWouldHappen(station, asked, tool, decision.hold !== undefined)) };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    return { ...explained, detail: error.message, wouldAnswer: refusal(error.code) };
  }
}

async function whatWouldHappen(station: Station, asked: ToolCall, tool: Tool, hold: boolean): Promise<JsonObject> {
  const fingerprint = fingerprintOf(asked.tool, canonical(asked.args));
  const identified = await identifyCall(station, asked.agent.name, tool, asked.args, fingerprint, asked.key);
  const earlier = await station.calls.read(identified.txn);
  const held = hold || identified.holdAsRepeat === true;
  const plan: JsonObject = {
    txn: identified.txn,
    identifiedBy: identified.identity,
    effect: tool.effect,
    once: tool.effect === 'read' ? null : tool.once.by,
    undo: { kind: tool.undo.kind, tool: tool.undo.tool ?? null },
    hold: held,
    request: shownRequest(station, asked, tool, identified.txn),
  };
  if (earlier === undefined)
    return {
      ...plan,
      earlier: null,
      wouldAnswer: held ? { status: 202, state: 'held' } : { status: 200, sends: true },
    };
  if (!earlier.fingerprint.equals(fingerprint)) return { ...plan, wouldAnswer: refusal('key_reused') };
  if (earlier.erasedAt !== null) return { ...plan, wouldAnswer: refusal('key_expired') };
  const status = isFinal(earlier.state) && earlier.problem !== null ? ERRORS[earlier.problem].status : 200;
  return { ...plan, earlier: { state: earlier.state }, wouldAnswer: { status, replayed: true, sends: false } };
}

function shownRequest(station: Station, asked: ToolCall, tool: Tool, txn: string): Json {
  const shown = redact(asked.args, pathsUnder('args', tool.redact)) as JsonObject;
  const { method, path, body } = station.adapters.for(tool).prepare(tool, shown, txn);
  return { upstream: tool.upstream, method, path, body };
}

function refusal(code: ErrorCode): JsonObject {
  return { status: ERRORS[code].status, code, retry: ERRORS[code].retry, sends: false };
}
