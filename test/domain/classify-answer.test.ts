import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Outcome, UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import {
  type AnswerContract,
  classifyAnswer,
  classifyCutAnswer,
  parseResult,
} from '../../gateway/domain/attempts/classify-answer.ts';
import type { Json } from '../../gateway/domain/json.ts';
import { compileValidPolicies, UPSTREAM_YAML } from '../policy/example.ts';

const answerOf = (status: number, body: string | null = '"x"'): UpstreamAnswer => ({
  status,
  contentType: 'application/json',
  body,
  encoding: 'utf8',
});

/** The contract of a tool with these keys. */
function contractOf(keys = ''): AnswerContract {
  const tool = compileValidPolicies(`${UPSTREAM_YAML}tools:\n  u.t: { upstream: u${keys && `, ${keys}`} }\n`).tools.get(
    'u.t',
  );
  if (tool === undefined) throw new Error('The policy has no tool u.t.');
  return tool;
}

describe('the outcome of a status', () => {
  const contract = contractOf();

  it.each<[number, Outcome['kind']]>([
    [200, 'ok'],
    [201, 'ok'],
    [202, 'accepted'],
    [204, 'ok'],
    [299, 'ok'],
    [400, 'refused'],
    [401, 'refused'],
    [403, 'refused'],
    [404, 'refused'],
    [422, 'refused'],
    [429, 'refused'],
    [100, 'ambiguous'],
    [199, 'ambiguous'],
    [301, 'ambiguous'],
    [302, 'ambiguous'],
    [304, 'ambiguous'],
    [402, 'ambiguous'],
    [405, 'ambiguous'],
    [408, 'ambiguous'],
    [409, 'ambiguous'],
    [410, 'ambiguous'],
    [423, 'ambiguous'],
    [425, 'ambiguous'],
    [499, 'ambiguous'],
    [500, 'ambiguous'],
    [502, 'ambiguous'],
    [503, 'ambiguous'],
    [504, 'ambiguous'],
    [599, 'ambiguous'],
  ])('%i is %s', (status, kind) => {
    expect(classifyAnswer(contract, answerOf(status)).kind).toBe(kind);
    const cut = classifyCutAnswer(contract, status, 'cut');
    expect(cut.kind).toBe(kind === 'ok' ? 'ok_body_lost' : kind);
    if (kind !== 'ambiguous') expect('answer' in cut && cut.answer?.body).toBeNull();
  });

  it('follows noEffect and accepted of the tool', () => {
    const own = contractOf('noEffect: [503], accepted: [200, 207]');
    expect(classifyAnswer(own, answerOf(503)).kind).toBe('refused');
    expect(classifyAnswer(own, answerOf(404)).kind).toBe('ambiguous');
    expect(classifyAnswer(own, answerOf(207)).kind).toBe('accepted');
    expect(classifyAnswer(own, answerOf(202)).kind).toBe('ok');
    expect(classifyAnswer(contractOf('accepted: []'), answerOf(202)).kind).toBe('ok');
  });
});

describe('the outcome of a 2xx answer of a tool with `failed`', () => {
  const GRAPHQL = 'failed: has(result.errors)';
  const SLACK = 'failed: result.ok == false';
  const RPC = 'failed: "has(result.error) && result.error != null"';
  /** Errors without data mean that nothing happened; errors with data mean that part of it may have happened. */
  const PARTIAL =
    'failed: "!has(result.errors) ? dyn(false) : has(result.data) && result.data != null ? dyn(\'partly\') : dyn(true)"';

  it.each<[contract: string, status: number, body: string | null, expected: Outcome['kind']]>([
    [GRAPHQL, 200, '{"data":{"a":1}}', 'ok'],
    [GRAPHQL, 200, '{"errors":[{"message":"no"}]}', 'refused'],
    [GRAPHQL, 200, '{"data":null,"errors":[]}', 'refused'],
    [GRAPHQL, 201, '{"errors":[]}', 'refused'],
    [GRAPHQL, 202, '{"errors":[]}', 'refused'],
    [GRAPHQL, 202, '{"data":1}', 'accepted'],
    [GRAPHQL, 200, '<html>log in</html>', 'ambiguous'],
    [GRAPHQL, 200, '{"data":', 'ambiguous'],
    [GRAPHQL, 200, null, 'ambiguous'],
    [GRAPHQL, 204, null, 'ambiguous'],
    [GRAPHQL, 200, '[{"errors":[]}]', 'ambiguous'],
    [GRAPHQL, 200, '7', 'ambiguous'],
    [GRAPHQL, 200, 'null', 'ambiguous'],
    [GRAPHQL, 400, '{"errors":[]}', 'refused'],
    [GRAPHQL, 500, '{"errors":[]}', 'ambiguous'],
    [GRAPHQL, 302, '{"data":1}', 'ambiguous'],
    [SLACK, 200, '{"ok":true}', 'ok'],
    [SLACK, 200, '{"ok":false,"error":"channel_not_found"}', 'refused'],
    [SLACK, 200, '{}', 'ambiguous'],
    [RPC, 200, '{"jsonrpc":"2.0","id":1,"result":3}', 'ok'],
    [RPC, 200, '{"id":1,"result":3,"error":null}', 'ok'],
    [RPC, 200, '{"id":1,"error":{"code":-32000}}', 'refused'],
    [PARTIAL, 200, '{"data":{"a":1}}', 'ok'],
    [PARTIAL, 200, '{"data":null,"errors":[]}', 'refused'],
    [PARTIAL, 200, '{"data":{"a":1,"b":null},"errors":[]}', 'ambiguous'],
    ['failed: status == 207', 207, null, 'refused'],
    ['failed: status == 207', 200, 'text', 'ok'],
    ['failed: status / 100 != 2', 299, 'text', 'ok'],
    ['failed: "status != 204 && has(result.errors)"', 204, null, 'ok'],
    ['failed: "has(result.data.userErrors)"', 200, '{"data":null}', 'ambiguous'],
    ['failed: "has(result.data.userErrors)"', 200, '{}', 'ambiguous'],
    ['failed: result.failed', 200, '{"failed":"yes"}', 'ambiguous'],
    ['failed: result.failed', 200, '{"failed":true}', 'refused'],
    ['failed: result == "no"', 200, 'no', 'refused'],
    ['failed: false', 200, 'text', 'ok'],
  ])('%s: %i %s is %s', (keys, status, body, expected) => {
    expect(classifyAnswer(contractOf(keys), answerOf(status, body)).kind).toBe(expected);
  });

  it('says why an answer proves nothing, without quoting it', () => {
    expect(classifyAnswer(contractOf(SLACK), answerOf(200, '{"secret":"s3cret"}'))).toMatchObject({
      kind: 'ambiguous',
      detail: 'the upstream answered 200, but `failed` could not be evaluated: ok is missing in `result.ok == false`',
    });
  });

  it('knows nothing of an answer whose body was cut', () => {
    expect(classifyCutAnswer(contractOf(GRAPHQL), 200, 'reset')).toMatchObject({
      kind: 'ambiguous',
      detail: 'the upstream answered 200, but its body is needed for `failed`: reset',
    });
    expect(classifyCutAnswer(contractOf(GRAPHQL), 404, 'reset').kind).toBe('refused');
  });

  it('never takes an answer for a success unless `failed` is false, nor for a refusal unless it is true', () => {
    const contract = contractOf(GRAPHQL);
    fc.assert(
      fc.property(fc.integer({ min: 200, max: 299 }), fc.oneof(fc.json(), fc.string()), (status, body) => {
        const result = parseResult(answerOf(status, body));
        const { kind } = classifyAnswer(contract, answerOf(status, body));
        const isObject = typeof result === 'object' && result !== null && !Array.isArray(result);
        if (!isObject) expect(kind).toBe('ambiguous');
        else if (Object.hasOwn(result, 'errors')) expect(kind).toBe('refused');
        else expect(kind).toBe(status === 202 ? 'accepted' : 'ok');
      }),
    );
  });

  it('gives each status one outcome, whatever the body', () => {
    const contract = contractOf();
    fc.assert(
      fc.property(fc.integer({ min: 100, max: 599 }), fc.jsonValue() as fc.Arbitrary<Json>, (status, body) => {
        const { kind } = classifyAnswer(contract, answerOf(status, JSON.stringify(body)));
        expect(kind).toBe(classifyAnswer(contract, answerOf(status, null)).kind);
      }),
    );
  });
});
