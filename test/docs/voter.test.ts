import { type ChildProcess, spawn } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { requestVote } from '../../adapters/webhook-voter.ts';
import { findFreePort } from '../support/gateway.ts';
import { readBlocks } from './blocks.ts';

const PAGE = 'docs/guides/votes-and-delay.md';
const SECRET = 'a-voter-secret-of-some-length';

describe(`the voter of ${PAGE}`, () => {
  let child: ChildProcess;
  let url = '';

  beforeAll(async () => {
    const program = (await readBlocks(PAGE)).find(({ language }) => language === 'js')?.text ?? '';
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
  ])('answers the ids %j, signed with %s, with %j', async (ids, secret, expected) => {
    const voter = { name: 'reviewer', url, secret, allowPrivate: true, withinMs: 10_000 };
    const { vote } = await requestVote(voter, {
      digest: 'd'.repeat(64),
      body: JSON.stringify({ digest: 'd'.repeat(64), args: { ids } }),
    });
    expect(vote).toEqual({ voter: 'reviewer', ...expected });
  });
});
