// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies are written with templates
import { describe, expect, it, test } from 'vitest';
import type { JsonObject } from '../../gateway/domain/json.ts';
import { decideBuiltIn, decideCall, decideMcpRead } from '../../gateway/policy/decide.ts';
import { canReachQuorum } from '../../gateway/policy/evaluate-voters.ts';
import { runPolicyTests } from '../../gateway/policy/policy-tests.ts';
import {
  buildCallScope,
  compilePolicyText,
  compileValidPolicies,
  listPolicyFaults,
  requireAgent,
  UPSTREAM_YAML,
} from './example.ts';

const SECRET = 'a-secret-of-some-length';
const ENV = { S: SECRET, SHORT: 'short', HOST: 'canary.example' };
const HOOK = '{ name: h, webhook: "https://h.example/v", secret: "${env.S}" }';

function rule(text: string): string {
  return `${UPSTREAM_YAML}tools:
  t: { upstream: u, once: { by: idempotent } }
agents:
  bot:
    rules:
      - { allow: "*", ${text} }
`;
}

const voters = (...of: string[]): string => `voters: { of: [${of.join(', ')}] }`;
const at = 'policies/p.yaml:8';

describe('what cannot work is refused at load', () => {
  test.each<[string, string[]]>([
    [voters(), [`${at}:33: a list is too short: at least 1`]],
    [
      'voters: { quorum: 3, of: [{ name: a, when: "true" }] }',
      [`${at}:41: quorum 3 can never be reached with 1 of them`],
    ],
    [voters('{ name: a }'), [`${at}:38: a voter needs exactly one of when and webhook`]],
    [
      voters(`{ name: a, when: "true", webhook: "https://h.example", secret: "\${env.S}" }`),
      [`${at}:38: a voter needs exactly one of when and webhook`],
    ],
    [
      voters('{ name: a, when: "true" }', '{ name: a, when: "false" }'),
      [`${at}:73: there are two voters called a: each needs a name of its own`],
    ],
    [voters('{ name: a, when: "true", within: 1s }'), [`${at}:63: within is only for voters with a webhook`]],
    [
      voters('{ name: a, when: size(args.ids) }'),
      [`${at}:55: the expression must yield true or false, but yields int`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example" }'),
      [`${at}:38: a webhook needs a secret: without one anybody could answer for it; write secret: "\${env.NAME}"`],
    ],
    [
      voters(`{ name: a, webhook: "https://h.example", secret: ${SECRET} }`),
      [`${at}:87: a secret does not stand in policies: write "\${env.NAME}" or "\${file("/path")}"`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example", secret: "${env.SHORT}" }'),
      [`${at}:87: is shorter than 16 characters: whoever guesses it can forge votes`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example", secret: "${env.NONE}" }'),
      [`${at}:90: the environment variable NONE is not set`],
    ],
    [
      voters('{ name: a, webhook: "http://h.example", secret: "${env.S}" }'),
      [`${at}:58: is not a URL with https:// (or http:// to a private address, with allowPrivate: true)`],
    ],
    [
      voters('{ name: a, webhook: "https://x:y@${env.HOST}", secret: "${env.S}" }'),
      [`${at}:58: no credentials in a url: question and answer are signed`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example", secret: "${env.S}", within: 31s }'),
      [`${at}:107: a voter is waited for at most 30s`],
    ],
    ['delay: 31d', [`${at}:30: a delay is at most 30d`]],
    ['delay: soon', [`${at}:30: "soon" is not a duration: write 500ms, 10s, 5m, 24h or 30d`]],
  ])('%s', (text, faults) => {
    const found = listPolicyFaults(rule(text), ENV);
    expect(found.sort()).toEqual(faults.sort());
    expect(found.join()).not.toContain(SECRET);
    expect(found.join()).not.toContain('canary');
  });

  it('a deny has neither', () => {
    const yaml = rule(`delay: 5m, voters: { of: [${HOOK}] }`).replace('allow:', 'deny:');
    expect(listPolicyFaults(yaml, ENV)).toEqual([
      `${at}:22: a deny has no delay: it denies`,
      `${at}:33: a deny has no voters: it denies`,
    ]);
  });
});

const MIXED = rule(
  `voters: { quorum: 2, of: [{ name: small, when: size(args.ids) <= 2 }, { name: named, when: args.owner != "root" }, ${HOOK}] }, delay: 5m`,
);

describe('a poll', () => {
  const policies = compileValidPolicies(MIXED, ENV);
  const poll = (args: JsonObject) => {
    const decision = decideCall(policies, requireAgent(policies), 't', buildCallScope(args));
    if (!decision.allowed || decision.poll === undefined) throw new Error('no poll');
    return decision.poll;
  };

  test.each<[string, JsonObject, string, boolean]>([
    ['true approves', { ids: [1], owner: 'bot' }, 'small:approve named:approve', true],
    ['false denies', { ids: [1, 2, 3], owner: 'bot' }, 'small:deny named:approve', true],
    ['what cannot be evaluated abstains, and is no approval', { ids: [1] }, 'small:approve named:abstain', true],
    ['nobody needs to be asked when it is lost', { ids: [1, 2, 3], owner: 'root' }, 'small:deny named:deny', false],
  ])('%s', (_, args, said, open) => {
    const cast = poll(args);
    expect(cast.votes.map(({ voter, verdict }) => `${voter}:${verdict}`).join(' ')).toBe(said);
    expect(canReachQuorum(cast)).toBe(open);
    expect(cast.open.map(({ name }) => name)).toEqual(['h']);
  });

  it('needs all of them when it does not say how many', () => {
    const all = compileValidPolicies(rule(voters('{ name: a, when: "true" }', '{ name: b, when: "true" }', HOOK)), ENV);
    const decision = decideCall(all, requireAgent(all), 't', buildCallScope());
    expect(decision).toMatchObject({
      allowed: true,
      poll: { quorum: 3 },
      rule: { voters: { of: [{}, {}, { withinMs: 2000 }] } },
    });
  });

  it('a rule with voters or a delay allows nothing that cannot be voted on or wait', () => {
    const agent = requireAgent(policies);
    expect(decideBuiltIn(agent, 'oncegate.rollback_saga', buildCallScope())).toMatchObject({
      allowed: false,
      reason: expect.stringContaining('has voters or a delay'),
    });
    expect(decideMcpRead(agent, 'u.resource', buildCallScope()).allowed).toBe(false);
  });
});

it('policy tests say what webhooks say; whoever is not named says nothing', () => {
  const test = (name: string, more: string) => `  - { name: ${name}, agent: bot, tool: t, ${more} }\n`;
  const tests = `tests:
${test('expressions-suffice', 'args: { ids: [1], owner: bot }, expect: hold')}${test('silence-is-no-yes', 'args: { ids: [1, 2, 3], owner: bot }, expect: deny, rule: "h: abstain"')}${test('it-says-yes', 'args: { ids: [1, 2, 3], owner: bot }, votes: { h: approve }, expect: hold')}${test('it-says-no', 'args: { ids: [1, 2, 3], owner: bot }, votes: { h: deny }, expect: deny')}${test('wrong-hope', 'args: { ids: [1, 2, 3], owner: bot }, expect: allow')}${test('stranger', 'args: { ids: [1], owner: bot }, votes: { small: approve }, expect: hold')}`;
  const loaded = compilePolicyText({ 'p.yaml': MIXED, 'p_test.yaml': tests }, ENV);
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
  const results = runPolicyTests(loaded.policies, loaded.tests);
  expect(results.map(({ test: { name }, got, passed }) => `${name}: ${got} ${passed}`)).toEqual([
    'expressions-suffice: hold true',
    'silence-is-no-yes: deny true',
    'it-says-yes: hold true',
    'it-says-no: deny true',
    'wrong-hope: deny false',
    'stranger: hold false',
  ]);
  expect(results[4]?.faults).toEqual([
    'expected allow, got deny: bot rule 1 (policies/p.yaml:8) needs 2 approvals of its voters (small: deny, named: approve, h: abstain)',
  ]);
  expect(results[5]?.faults).toEqual([
    'votes has small, but bot rule 1 (policies/p.yaml:8) decides, and it asks h over a webhook',
  ]);
});
