import { isObject } from '../gateway/domain/json.ts';
import type { WebhookVoter } from '../gateway/domain/policy.ts';
import { scrub } from '../gateway/domain/redact.ts';
import { isSigned, signatureOf } from '../gateway/domain/signature.ts';
import type { Verdict, Vote } from '../gateway/domain/vote.ts';
import { type ErrandAnswer, runErrand } from './errand.ts';

const MOST_ANSWER_BYTES = 65_536;
const MOST_REASON = 500;
const VERDICTS: readonly unknown[] = ['approve', 'deny', 'abstain'] satisfies Verdict[];

export interface Question {
  /** Of this asking and no other: an answer must repeat it, so that none can be kept for another time or another call. */
  readonly digest: string;
  readonly body: string;
}

export interface Asked {
  readonly vote: Vote;
  /** What went wrong on the way, for the operator's log: it may name the voter's host. */
  readonly trouble?: string;
}

/**
 * Asks a voter once. Throws nothing: whatever is not an answer in time, to this very question, signed by the voter, is an
 * abstention, which counts no more than a no. Reasons say nothing of where the voter is.
 */
export async function askVoter(voter: WebhookVoter, question: Question): Promise<Asked> {
  const { name, url, secret, allowPrivate, withinMs } = voter;
  const began = performance.now();
  const abstains = (reason: string): Vote => ({ voter: name, verdict: 'abstain', reason });
  try {
    const answer = await runErrand({
      url,
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'user-agent': 'oncegate',
        'oncegate-signature': signatureOf(secret, question.body),
      },
      body: question.body,
      allowPrivate,
      mostBytes: MOST_ANSWER_BYTES,
      timeoutMs: withinMs,
    });
    const said = readAnswer(answer, secret, question.digest);
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
function readAnswer(answer: ErrandAnswer, secret: string, digest: string): Omit<Vote, 'voter'> | string {
  const { status, headers, body } = answer;
  if (status !== 200) return `it answered ${status}, not 200`;
  if (!isSigned(secret, body, headers['oncegate-signature'])) return 'its answer is not signed with its secret';
  const said = parsed(body);
  if (!isObject(said) || !VERDICTS.includes(said['vote'])) return 'its answer is not a vote: approve, deny or abstain';
  if (said['digest'] !== digest) return 'its answer is about something else: it must repeat the digest of the question';
  const { reason } = said;
  return { verdict: said['vote'] as Verdict, reason: typeof reason === 'string' ? tidy(reason, secret) : '' };
}

function parsed(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    return undefined;
  }
}

/** As it can be stored and printed, whatever was sent. */
function tidy(reason: string, secret: string): string {
  return scrub(reason, [secret])
    .slice(0, MOST_REASON)
    .replaceAll(/[\p{Cc}\p{Cs}]+/gu, ' ')
    .trim();
}
