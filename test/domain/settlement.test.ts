import { describe, expect, it } from 'vitest';
import type { Outcome, UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import { describeLastAttempt, describeOutcome } from '../../gateway/domain/attempts/describe-outcome.ts';
import {
  buildAnswerSettlement,
  buildDeniedSettlement,
  buildFailedSettlement,
  buildProbedSettlement,
  type FailedCall,
  type Settlement,
} from '../../gateway/domain/attempts/settlement.ts';

const answerOf = (status: number): UpstreamAnswer => ({ status, contentType: null, body: null, encoding: 'utf8' });
const OK: Outcome = { kind: 'ok', answer: answerOf(200) };
const BODY_LOST: Outcome = { kind: 'ok_body_lost', answer: answerOf(200), detail: 'cut' };
const ACCEPTED: Outcome = { kind: 'accepted', answer: answerOf(202) };
const REFUSED: Outcome = { kind: 'refused', answer: answerOf(404) };
const NOT_SENT: Outcome = { kind: 'not_sent', detail: 'connection refused' };
const AMBIGUOUS: Outcome = { kind: 'ambiguous', detail: 'reset' };

describe('the settlement by an answer', () => {
  it.each<[string, Outcome, number, Partial<Settlement>]>([
    ['an answer', OK, 0, { outcome: 'answered', evidence: 'answer' }],
    ['an answer after an unknown attempt', OK, 1, { outcome: 'answered', evidence: 'same_key' }],
    ['an answer without its body', BODY_LOST, 0, { outcome: 'body_unavailable', evidence: 'answer', detail: 'cut' }],
    ['the same after an unknown attempt', BODY_LOST, 2, { outcome: 'body_unavailable', evidence: 'same_key' }],
    ['accepted work', ACCEPTED, 0, { outcome: 'accepted', evidence: 'answer' }],
    [
      'the same with a cut body',
      { ...ACCEPTED, detail: 'cut' },
      1,
      { outcome: 'accepted', evidence: 'same_key', detail: 'cut' },
    ],
    ['a question', { ...OK, wantsInput: true }, 1, { outcome: 'input_required', evidence: 'answer' }],
  ])('%s is a success', (_, outcome, unresolved, expected) => {
    const settlement = buildAnswerSettlement('succeeded', outcome, unresolved);
    expect(settlement).toMatchObject({ state: 'succeeded', ...expected });
    expect(settlement.problem).toBeUndefined();
    expect(settlement.isObservationOnly).toBeUndefined();
  });

  it('a refusal is a failure of the tool', () => {
    expect(buildAnswerSettlement('failed', REFUSED, 0)).toEqual({
      state: 'failed',
      outcome: 'refused',
      evidence: 'answer',
      problem: 'tool_failed',
    });
  });
});

it('the settlement by a probe says why the result is not the usual one', () => {
  const probed = { state: 'succeeded', outcome: 'probed', evidence: 'probe' };
  expect(buildProbedSettlement()).toEqual(probed);
  expect(buildProbedSettlement('why')).toEqual({ ...probed, detail: 'why' });
});

it('the settlement of a denied call says why', () => {
  const expected = { state: 'failed', outcome: 'no_effect', evidence: 'gateway', problem: 'denied', detail: 'no' };
  expect(buildDeniedSettlement('no')).toEqual(expected);
});

describe('the settlement of a failed call', () => {
  const callOf = (more: Partial<FailedCall>): FailedCall => ({
    attempt: 1,
    attemptDetail: null,
    recalled: false,
    fenced: false,
    disprovedBy: null,
    ...more,
  });

  it.each<[string, Partial<FailedCall>, Outcome | undefined, Settlement['problem'], string]>([
    ['never sent', { attempt: 0 }, undefined, 'unavailable', 'it could not be sent in time'],
    ['not sent by the last attempt', {}, NOT_SENT, 'unavailable', 'connection refused'],
    ['not sent again', {}, undefined, 'tool_failed', 'it could not be sent again in time'],
    ['refused', { attempt: 2 }, REFUSED, 'tool_failed', 'the upstream answered 404'],
    ['recorded by an earlier owner', { attemptDetail: 'reset' }, undefined, 'tool_failed', 'reset'],
    [
      'recalled with its saga',
      { recalled: true },
      NOT_SENT,
      'saga_closed',
      'its saga was rolled back before it was sent',
    ],
    ['fenced', { recalled: true, fenced: true }, NOT_SENT, 'fenced', 'its run was taken over before it was sent'],
    [
      'disproved by a probe',
      { disprovedBy: 'probe' },
      AMBIGUOUS,
      'tool_failed',
      'reset; the probe found no effect after 1 attempt',
    ],
    [
      'disproved by an observation, the last attempt unknown',
      { disprovedBy: 'observation', attempt: 3 },
      undefined,
      'tool_failed',
      'a second observation found no effect after 3 attempts',
    ],
    [
      'disproved by an observation, the last attempt recorded',
      { disprovedBy: 'observation', attempt: 2, attemptDetail: 'timeout' },
      undefined,
      'tool_failed',
      'timeout; a second observation found no effect after 2 attempts',
    ],
  ])('%s', (_, call, outcome, problem, detail) => {
    const evidence = (call.disprovedBy ?? null) === null ? 'gateway' : 'probe';
    const expected = { state: 'failed', outcome: 'no_effect', evidence, problem, detail };
    expect(buildFailedSettlement(callOf(call), outcome)).toEqual(expected);
  });
});

describe('the words for an outcome', () => {
  it('are its detail or the status of its answer', () => {
    expect(describeOutcome(OK)).toBe('the upstream answered 200');
    expect(describeOutcome({ kind: 'ambiguous', detail: 'the upstream answered 500', answer: answerOf(500) })).toBe(
      'the upstream answered 500',
    );
  });

  it('may have a detail beside the answer', () => {
    expect(describeOutcome(ACCEPTED)).toBe('the upstream answered 202');
    expect(describeOutcome(REFUSED)).toBe('the upstream answered 404');
    expect(describeOutcome({ kind: 'accepted', answer: answerOf(202), detail: 'cut' })).toBe('cut');
    expect(describeOutcome({ kind: 'refused', answer: answerOf(200), detail: 'failed' })).toBe('failed');
  });

  it('can be stored', () => {
    expect(describeOutcome({ kind: 'ambiguous', detail: 'a\0b' })).toBe('a\uFFFDb');
  });

  it('prefer the outcome that this process saw to what an earlier owner recorded', () => {
    expect(describeLastAttempt({ attempt: 2, attemptDetail: 'recorded' }, AMBIGUOUS)).toBe('reset');
  });
});
