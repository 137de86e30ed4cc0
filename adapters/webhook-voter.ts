import type { Vote, VoteChoice } from '../gateway/domain/approvals/vote.ts';
import { scrub } from '../gateway/domain/calls/redact.ts';
import { isJsonObject } from '../gateway/domain/json.ts';
import type { WebhookVoter } from '../gateway/domain/policy.ts';
import { isSignatureValid, signBody } from '../gateway/domain/webhook-signature.ts';
import { type OutboundResponse, sendOutboundRequest } from './http/outbound-request.ts';

const MAX_RESPONSE_BYTES = 65_536;
const MAX_REASON_LENGTH = 500;
const VOTE_CHOICES: readonly unknown[] = ['approve', 'deny', 'abstain'] satisfies VoteChoice[];

export interface VoteRequest {
  /**
   * A hash over the call and a random id, so it is unique per request. The answer must repeat it, so that no answer can be
   * replayed for another request.
   */
  readonly digest: string;
  readonly body: string;
}

export interface VoteResponse {
  readonly vote: Vote;
  /** The transport error, for the log of the operator only, because it may name the host of the voter. */
  readonly transportError?: string;
}

/**
 * Asks a voter once. Never throws: an answer that is late, unsigned or for another request counts as an abstention. Reasons do
 * not reveal the address of the voter.
 */
export async function requestVote(voter: WebhookVoter, request: VoteRequest): Promise<VoteResponse> {
  const { name, url, secret, allowPrivate, withinMs } = voter;
  const startedAt = performance.now();
  const abstain = (reason: string): Vote => ({ voter: name, verdict: 'abstain', reason });
  try {
    const response = await sendOutboundRequest({
      url,
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'user-agent': 'oncegate',
        'oncegate-signature': signBody(secret, request.body),
      },
      body: request.body,
      allowPrivate,
      maxBytes: MAX_RESPONSE_BYTES,
      timeoutMs: withinMs,
    });
    const parsed = parseVote(response, secret, request.digest);
    return { vote: typeof parsed === 'string' ? abstain(parsed) : { voter: name, ...parsed } };
  } catch (error) {
    const isLate = performance.now() - startedAt >= withinMs;
    return {
      vote: abstain(
        isLate
          ? `no answer within ${withinMs} ms`
          : 'the voter could not be reached, or its answer did not arrive completely',
      ),
      transportError: error instanceof Error ? error.message : String(error),
    };
  }
}

/** The vote in a response, or a string that says why there is none. Checks the signature before it parses the body. */
function parseVote(response: OutboundResponse, secret: string, digest: string): Omit<Vote, 'voter'> | string {
  const { status, headers, body } = response;
  if (status !== 200) return `the voter answered ${status}, not 200`;
  if (!isSignatureValid(secret, body, headers['oncegate-signature']))
    return 'the answer is not signed with the secret of the voter';
  const parsed = parseJson(body);
  if (!isJsonObject(parsed) || !VOTE_CHOICES.includes(parsed['vote']))
    return 'the answer is not a vote: approve, deny or abstain';
  if (parsed['digest'] !== digest) return 'the answer does not repeat the digest of the request';
  const { reason } = parsed;
  return {
    verdict: parsed['vote'] as VoteChoice,
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

/** Makes the reason of a voter safe to store and print. */
function sanitizeReason(reason: string, secret: string): string {
  return scrub(reason, [secret])
    .slice(0, MAX_REASON_LENGTH)
    .replaceAll(/[\p{Cc}\p{Cs}]+/gu, ' ')
    .trim();
}
