import type { Json } from '../json.ts';
import { ExpressionError, type Tool } from '../policy.ts';
import type { Outcome, UpstreamAnswer } from './adapter.ts';

/** The part of a contract that says what an answer means. */
export type AnswerContract = Pick<Tool, 'noEffect' | 'accepted' | 'failed'>;

/**
 * Decides what a complete answer proves. `failed` is evaluated first, because a service may refuse with any 2xx status. An answer
 * for which `failed` cannot be evaluated proves nothing.
 */
export function classifyAnswer(tool: AnswerContract, answer: UpstreamAnswer): Outcome {
  const { status } = answer;
  if (!isSuccess(status) || tool.noEffect.has(status)) return classifyStatus(tool, answer);
  if (tool.failed !== undefined) {
    try {
      if (tool.failed({ status, result: parseResult(answer) }))
        return {
          kind: 'refused',
          answer,
          detail: `the upstream answered ${status}, and \`failed\` is true for this answer`,
        };
    } catch (error) {
      if (!(error instanceof ExpressionError)) throw error;
      const detail = `the upstream answered ${status}, but \`failed\` could not be evaluated: ${error.message}`;
      return { kind: 'ambiguous', detail, answer };
    }
  }
  return { kind: tool.accepted.has(status) ? 'accepted' : 'ok', answer };
}

/** Decides what an answer proves whose body did not arrive completely. Without its body, `failed` cannot be evaluated. */
export function classifyCutAnswer(tool: AnswerContract, status: number, detail: string): Outcome {
  const answer: UpstreamAnswer = { status, contentType: null, body: null, encoding: 'utf8' };
  if (!isSuccess(status) || tool.noEffect.has(status)) return classifyStatus(tool, answer);
  if (tool.failed !== undefined) {
    const why = `the upstream answered ${status}, but its body is needed for \`failed\`: ${detail}`;
    return { kind: 'ambiguous', detail: why, answer };
  }
  return { kind: tool.accepted.has(status) ? 'accepted' : 'ok_body_lost', answer, detail };
}

function classifyStatus(tool: AnswerContract, answer: UpstreamAnswer): Outcome {
  if (tool.noEffect.has(answer.status)) return { kind: 'refused', answer };
  return { kind: 'ambiguous', detail: `the upstream answered ${answer.status}`, answer };
}

function isSuccess(status: number): boolean {
  return status >= 200 && status < 300;
}

/** The `result` of expressions: the parsed body if it is JSON, else the text. */
export function parseResult(answer: UpstreamAnswer): Json {
  if (answer.body === null) return null;
  return parseJsonBody(answer) ?? answer.body;
}

export function parseJsonBody(answer: UpstreamAnswer): Json | undefined {
  if (answer.body === null || answer.encoding !== 'utf8') return undefined;
  try {
    return JSON.parse(answer.body) as Json;
  } catch {
    return undefined;
  }
}
