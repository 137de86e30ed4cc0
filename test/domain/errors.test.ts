import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { ERRORS, type ErrorCode, GatewayError, LedgerError } from '../../gateway/domain/errors.ts';

/** The error table of the public contract. Clients rely on these values. */
const CONTRACT: readonly [code: string, status: number, retry: string][] = [
  ['malformed', 400, 'never'],
  ['invalid_arguments', 400, 'never'],
  ['unauthenticated', 401, 'never'],
  ['denied', 403, 'never'],
  ['unknown_tool', 404, 'never'],
  ['in_progress', 409, 'same_key'],
  ['fenced', 409, 'never'],
  ['locked', 409, 'after_delay'],
  ['saga_closed', 409, 'never'],
  ['key_expired', 410, 'new_key'],
  ['too_large', 413, 'never'],
  ['unsupported_media', 415, 'never'],
  ['key_reused', 422, 'new_key'],
  ['rejected', 422, 'new_key'],
  ['expired', 422, 'new_key'],
  ['cancelled', 422, 'new_key'],
  ['rate_limited', 429, 'after_delay'],
  ['over_budget', 429, 'after_delay'],
  ['tool_failed', 502, 'new_key'],
  ['breaker_open', 503, 'after_delay'],
  ['unavailable', 503, 'after_delay'],
  ['frozen', 503, 'after_delay'],
  ['in_doubt', 504, 'same_key'],
];

/** Further errors, for HTTP itself and the admin API. */
const FURTHER: typeof CONTRACT = [
  ['forbidden', 403, 'never'],
  ['not_found', 404, 'never'],
  ['conflict', 409, 'never'],
  ['internal', 500, 'same_key'],
];

describe('the error table', () => {
  it.each([...CONTRACT, ...FURTHER])('%s is %i, retry %s', (code, status, retry) => {
    expect(ERRORS[code as ErrorCode]).toMatchObject({ status, retry });
  });

  it('has no other errors', () => {
    expect(Object.keys(ERRORS).sort()).toEqual([...CONTRACT, ...FURTHER].map(([code]) => code).sort());
  });

  it('has a unique title for each error', () => {
    const titles = Object.values(ERRORS).map(({ title }) => title);
    expect(new Set(titles).size).toBe(titles.length);
    for (const title of titles) expect(title).toMatch(/^[A-Z].*[^.]$/);
  });
});

describe('docs/reference/errors.md', () => {
  it('has the same table in the same order, with a cause and advice for each error', async () => {
    const text = await readFile('docs/reference/errors.md', 'utf8');
    const rows = [...text.matchAll(/^\| `(\w+)` +\| (\d{3}) +\| `(\w+)` +\| (.*?) +\| (.*?) +\|$/gm)];
    expect(rows.map(([, code, status, retry]) => [code, Number(status), retry])).toEqual(
      Object.entries(ERRORS).map(([code, { status, retry }]) => [code, status, retry]),
    );
    for (const [row, , , , when = '', advice = ''] of rows) {
      expect(when.length, row).toBeGreaterThan(10);
      expect(advice.length, row).toBeGreaterThan(8);
    }
  });

  it('explains every value of retry', async () => {
    const text = await readFile('docs/reference/errors.md', 'utf8');
    for (const advice of new Set(Object.values(ERRORS).map(({ retry }) => retry)))
      expect(text).toMatch(new RegExp(`^\\| \`${advice}\` +\\| .+ \\|$`, 'm'));
  });
});

describe('an error', () => {
  it('keeps its code, detail and extras', () => {
    const error = new GatewayError('denied', 'because', { txn: 't', members: { rule: 'r' } });
    expect(error).toMatchObject({ code: 'denied', message: 'because', extras: { txn: 't', members: { rule: 'r' } } });
    expect(error).toBeInstanceOf(Error);
  });

  it('of the ledger tells whether it may have committed', () => {
    const cause = new Error('x');
    expect(new LedgerError('lost', { isCommitUnknown: true, cause })).toMatchObject({
      isCommitUnknown: true,
      isRejected: false,
      cause,
    });
    expect(new LedgerError('no', { isCommitUnknown: false, isRejected: true, cause })).toMatchObject({
      isCommitUnknown: false,
      isRejected: true,
    });
  });
});
