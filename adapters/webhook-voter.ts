import type { Vote, VoteChoice } from '../gateway/domain/approvals/vote.ts';
import { scrub } from '../gateway/domain/calls/redact.ts';
import { isJsonObject } from '../gateway/domain/json.ts';
import type { WebhookVoter } from '../gateway/domain/policy.ts';
import { isSignatureValid, signBody } from '../gateway/domain/webhook-signature.ts';
import { type OutboundResponse, sendOutboundRequest } from './http/outbound-request.ts';

const MAX_RESPONSE_BYTES = 65_536;
const MAX_REASON_LENGTH = 500;
const VERDICTS: readonly unknown[] = ['approve', 'deny', 'abstain'] satisfies VoteChoice[];

export interface VoteRequest {
  /** Of this asking and no other: an answer must repeat it, so that none can be kept for another time or another call. */
  readonly digest: string;
  readonly body: string;
}

export interface VoteResponse {
  readonly vote: Vote;
  /** What went wrong on the way, for the operator's log: it may name the voter's host. */
  readonly trouble?: string;
}

/**
 * Asks a voter once. Throws nothing: whatever is not an answer in time, to this very question, signed by the voter, is an
 * abstention, which counts no more than a no. Reasons say nothing of where the voter is.
 */
export async function requestVote(voter: WebhookVoter, question: VoteRequest): Promise<VoteResponse> {
  const { name, url, secret, allowPrivate, withinMs } = voter;
  const began = performance.now();
  const abstains = (reason: string): Vote => ({ voter: name, verdict: 'abstain', reason });
  try {
    const answer = await sendOutboundRequest({
      url,
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'user-agent': 'oncegate',
        'oncegate-signature': signBody(secret, question.body),
      },
      body: question.body,
      allowPrivate,
      mostBytes: MAX_RESPONSE_BYTES,
      timeoutMs: withinMs,
    });
    const said = readVote(answer, secret, question.digest);
    return { vote: typeof said === 'string' ? abstains(said) : { voter: name, ...said } };
  } catch (error) {
    const isLate = performance.now() - began >= withinMs;
    return {
      vote: abstains(isLate ? `no answer within ${withinMs} ms` : 'it could not be reached, or broke off'),
      trouble: error instanceof Error ? error.message : String(error),
    };
  }
}

/** The vote in an answer, or why there is none in it. Who sent it is asked before what it says is looked at. */
function readVote(answer: OutboundResponse, secret: string, digest: string): Omit<Vote, 'voter'> | string {
  const { status, headers, body } = answer;
  if (status !== 200) return `it answered ${status}, not 200`;
  if (!isSignatureValid(secret, body, headers['oncegate-signature'])) return 'its answer is not signed with its secret';
  const said = parseJson(body);
  if (!isJsonObject(said) || !VERDICTS.includes(said['vote']))
    return 'its answer is not a vote: approve, deny or abstain';
  if (said['digest'] !== digest) return 'its answer is about something else: it must repeat the digest of the question';
  const { reason } = said;
  return {
    verdict: said['vote'] as VoteChoice,
    reason: typeof reason === 'string' ? sanitizeReason(reason, secret) : '',
  };
}

function parseJson(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

/** As it can be stored and printed, whatever was sent. */
function sanitizeReason(reason: string, secret: string): string {
  return scrub(reason, [secret])
    .slice(0, MAX_REASON_LENGTH)
    .replaceAll(/[\p{Cc}\p{Cs}]+/gu, ' ')
    .trim();
}
