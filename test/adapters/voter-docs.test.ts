import { type ChildProcess, spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { askVoter } from '../../adapters/voter.ts';
import { runSuite } from '../../gateway/policy/suite.ts';
import { load, UPSTREAM } from '../policy/example.ts';
import { freePort } from '../support/gateway.ts';

const SECRET = 'a-voter-secret-of-some-length';
const text = await readFile('docs/votes-and-delay.md', 'utf8');
const blocks = (language: string) =>
  [...text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\`$`, 'gms'))].map(([, block = '']) => block);

describe('docs/votes-and-delay.md', () => {
  it('has policies that load, and tests of them that pass', () => {
    const [policies = '', tests = ''] = blocks('yaml');
    const tools = `${UPSTREAM}tools:
  db.delete_rows: { upstream: u, once: { by: nature } }
  mail.send: { upstream: u, once: { by: nature }, request: { path: /mail } }
`;
    const loaded = load({ 'p.yaml': policies, 'tools.yaml': tools, 'p_test.yaml': tests }, { REVIEW_SECRET: SECRET });
    if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
    const results = runSuite(loaded.policies, loaded.tests);
    expect(results.map(({ faults }) => faults)).toEqual([[], [], []]);
  });

  describe('its voter', () => {
    let child: ChildProcess;
    let url = '';

    beforeAll(async () => {
      const [program = ''] = blocks('js');
      const port = await freePort();
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
      [[1], 'another-secret-of-some-length', { verdict: 'abstain', reason: 'it answered 403, not 200' }],
    ])('votes', async (ids, secret, said) => {
      const voter = { name: 'reviewer', url, secret, allowPrivate: true, withinMs: 10_000 };
      const { vote } = await askVoter(voter, {
        digest: 'd'.repeat(64),
        body: JSON.stringify({ digest: 'd'.repeat(64), args: { ids } }),
      });
      expect(vote).toEqual({ voter: 'reviewer', ...said });
    });
  });
});
