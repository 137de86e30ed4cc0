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

describe('faults at load', () => {
  test.each<[string, string[]]>([
    [voters(), [`${at}:33: of must have at least 1 item (got 0).`]],
    [
      'voters: { quorum: 3, of: [{ name: a, when: "true" }] }',
      [`${at}:41: quorum must be at most the number of voters, 1 (got 3).`],
    ],
    [voters('{ name: a }'), [`${at}:38: A voter must have either when or webhook (got neither).`]],
    [
      voters(`{ name: a, when: "true", webhook: "https://h.example", secret: "\${env.S}" }`),
      [`${at}:38: A voter must have either when or webhook (got both).`],
    ],
    [
      voters('{ name: a, when: "true" }', '{ name: a, when: "false" }'),
      [`${at}:73: Two voters have the name a. Give each voter a name of its own.`],
    ],
    [
      voters('{ name: a, when: "true", within: 1s }'),
      [`${at}:63: within is only for voters with a webhook. Remove it.`],
    ],
    [voters('{ name: a, when: size(args.ids) }'), [`${at}:55: The expression must yield true or false (got int).`]],
    [
      voters('{ name: a, webhook: "https://h.example" }'),
      [
        `${at}:38: A voter with a webhook must have a secret, because its votes are signed. Write secret: "\${env.NAME}".`,
      ],
    ],
    [
      voters(`{ name: a, webhook: "https://h.example", secret: ${SECRET} }`),
      [`${at}:87: A secret must not be written in a policy file. Write "\${env.NAME}" or "\${file("/path")}".`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example", secret: "${env.SHORT}" }'),
      [`${at}:87: secret must have at least 16 characters, because votes can be forged with a guessed one.`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example", secret: "${env.NONE}" }'),
      [
        `${at}:90: The environment variable NONE is not set. Set it where the gateway starts and restart the gateway, or remove the reference.`,
      ],
    ],
    [
      voters('{ name: a, webhook: "http://h.example", secret: "${env.S}" }'),
      [`${at}:58: webhook must be a URL with https://. For http:// to a private address, write allowPrivate: true.`],
    ],
    [
      voters('{ name: a, webhook: "https://x:y@${env.HOST}", secret: "${env.S}" }'),
      [`${at}:58: webhook must not contain a user name or password. The secret signs the request and the vote.`],
    ],
    [
      voters('{ name: a, webhook: "https://h.example", secret: "${env.S}", within: 31s }'),
      [`${at}:107: within must be at most 30s (got 31s).`],
    ],
    ['delay: 31d', [`${at}:30: delay must be at most 30d (got 31d).`]],
    ['delay: soon', [`${at}:30: delay must be a duration such as 500ms, 10s, 5m, 24h or 30d (got soon).`]],
  ])('%s', (text, faults) => {
    const found = listPolicyFaults(rule(text), ENV);
    expect(found.sort()).toEqual(faults.sort());
    expect(found.join()).not.toContain(SECRET);
    expect(found.join()).not.toContain('canary');
  });

  it('report voters and delay of a deny rule', () => {
    const yaml = rule(`delay: 5m, voters: { of: [${HOOK}] }`).replace('allow:', 'deny:');
    expect(listPolicyFaults(yaml, ENV)).toEqual([
      `${at}:22: delay is only for allow rules. Remove it from this deny.`,
      `${at}:33: voters is only for allow rules. Remove it from this deny.`,
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
    ['a true condition approves', { ids: [1], owner: 'bot' }, 'small:approve named:approve', true],
    ['a false condition denies', { ids: [1, 2, 3], owner: 'bot' }, 'small:deny named:approve', true],
    ['a condition that cannot be evaluated abstains', { ids: [1] }, 'small:approve named:abstain', true],
    ['the quorum cannot be reached', { ids: [1, 2, 3], owner: 'root' }, 'small:deny named:deny', false],
  ])('%s', (_, args, verdicts, isOpen) => {
    const cast = poll(args);
    expect(cast.votes.map(({ voter, verdict }) => `${voter}:${verdict}`).join(' ')).toBe(verdicts);
    expect(canReachQuorum(cast)).toBe(isOpen);
    expect(cast.open.map(({ name }) => name)).toEqual(['h']);
  });

  it('needs all voters when it has no quorum', () => {
    const all = compileValidPolicies(rule(voters('{ name: a, when: "true" }', '{ name: b, when: "true" }', HOOK)), ENV);
    const decision = decideCall(all, requireAgent(all), 't', buildCallScope());
    expect(decision).toMatchObject({
      allowed: true,
      poll: { quorum: 3 },
      rule: { voters: { of: [{}, {}, { withinMs: 2000 }] } },
    });
  });

  it('or a delay makes a rule deny built-in tools and MCP reads', () => {
    const agent = requireAgent(policies);
    expect(decideBuiltIn(agent, 'oncegate.rollback_saga', buildCallScope())).toMatchObject({
      allowed: false,
      reason: expect.stringContaining('has voters or a delay'),
    });
    expect(decideMcpRead(agent, 'u.resource', buildCallScope()).allowed).toBe(false);
  });
});

it('policy tests give the votes of webhooks, and the others abstain', () => {
  const test = (name: string, more: string) => `  - { name: ${name}, agent: bot, tool: t, ${more} }\n`;
  const tests = `tests:
${test('expressions-suffice', 'args: { ids: [1], owner: bot }, expect: hold')}${test('an-abstention-is-no-approval', 'args: { ids: [1, 2, 3], owner: bot }, expect: deny, rule: "h: abstain"')}${test('webhook-approves', 'args: { ids: [1, 2, 3], owner: bot }, votes: { h: approve }, expect: hold')}${test('webhook-denies', 'args: { ids: [1, 2, 3], owner: bot }, votes: { h: deny }, expect: deny')}${test('wrong-expectation', 'args: { ids: [1, 2, 3], owner: bot }, expect: allow')}${test('vote-of-an-expression', 'args: { ids: [1], owner: bot }, votes: { small: approve }, expect: hold')}`;
  const loaded = compilePolicyText({ 'p.yaml': MIXED, 'p_test.yaml': tests }, ENV);
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
  const results = runPolicyTests(loaded.policies, loaded.tests);
  expect(results.map(({ test: { name }, got, passed }) => `${name}: ${got} ${passed}`)).toEqual([
    'expressions-suffice: hold true',
    'an-abstention-is-no-approval: deny true',
    'webhook-approves: hold true',
    'webhook-denies: deny true',
    'wrong-expectation: deny false',
    'vote-of-an-expression: hold false',
  ]);
  expect(results[4]?.faults).toEqual([
    'Expected allow, got deny. bot rule 1 (policies/p.yaml:8) needs 2 approvals from its voters (got small: deny, named: approve, h: abstain).',
  ]);
  expect(results[5]?.faults).toEqual([
    'votes names small, which is not asked: bot rule 1 (policies/p.yaml:8) decides, and its webhook voters are h.',
  ]);
});
