import { type ChildProcess, spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { requestVote } from '../../adapters/webhook-voter.ts';
import { runPolicyTests } from '../../gateway/policy/policy-tests.ts';
import { compilePolicyText } from '../policy/example.ts';
import { findFreePort } from '../support/gateway.ts';

const SECRET = 'a-voter-secret-of-some-length';
const text = await readFile('docs/guides/votes-and-delay.md', 'utf8');
const blocks = (language: string) =>
  [...text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'gms'))].map(([, block = '']) => block);

describe('docs/guides/votes-and-delay.md', () => {
  it('has policies that load, and tests of them that pass', () => {
    const [policies = ''] = blocks('yaml');
    const [tests = ''] = blocks('yaml test');
    const loaded = compilePolicyText({ 'p.yaml': policies, 'p_test.yaml': tests }, { REVIEW_SECRET: SECRET });
    if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
    const results = runPolicyTests(loaded.policies, loaded.tests);
    expect(results.map(({ faults }) => faults)).toEqual([[], [], []]);
  });

  describe('its voter', () => {
    let child: ChildProcess;
    let url = '';

    beforeAll(async () => {
      const [program = ''] = blocks('js');
      const port = await findFreePort();
      url = `http://127.0.0.1:${port}/vote`;
      const env = { ...process.env, SECRET, PORT: String(port) };
      child = spawn(process.execPath, ['--input-type=module', '-e', program], { env, stdio: 'inherit' });
      await vi.waitFor(async () => expect((await fetch(url)).status).toBe(403), 20_000);
    });
    afterAll(() => {
      child?.kill('SIGKILL');
    });

    it.each([
      [[1], SECRET, { verdict: 'approve', reason: '' }],
      [Array.from({ length: 11 }, (_, i) => i), SECRET, { verdict: 'deny', reason: 'too many at once' }],
      [[1], 'another-secret-of-some-length', { verdict: 'abstain', reason: 'the voter answered 403, not 200' }],
    ])('votes', async (ids, secret, said) => {
      const voter = { name: 'reviewer', url, secret, allowPrivate: true, withinMs: 10_000 };
      const { vote } = await requestVote(voter, {
        digest: 'd'.repeat(64),
        body: JSON.stringify({ digest: 'd'.repeat(64), args: { ids } }),
      });
      expect(vote).toEqual({ voter: 'reviewer', ...said });
    });
  });
});
