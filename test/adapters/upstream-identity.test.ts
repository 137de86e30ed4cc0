import { describe, expect, it } from 'vitest';
import { UpstreamIdentity } from '../../adapters/upstream-identity.ts';
import { buildCredentialScrubber } from '../../gateway/domain/calls/redact.ts';

const KEY = Buffer.alloc(32, 1);
const url = (account: string) => `https://api.example/accounts/${account}/v1`;
const identityOf = (account: string, key = KEY) =>
  new UpstreamIdentity(url(account), buildCredentialScrubber([account]), key);

describe('the identity of an upstream', () => {
  it('contains no credentials, but differs between accounts', () => {
    const [one, two] = [identityOf('account-one'), identityOf('account-two')];
    expect(one.written).toMatch(/^https:\/\/api\.example\/accounts\/\[redacted\]\/v1#[0-9a-f]{16}$/);
    expect(one.matches(identityOf('account-one').written)).toBe(true);
    expect(one.matches(two.written)).toBe(false);
  });

  it('depends on the key, so it cannot be guessed', () => {
    expect(identityOf('account-one', Buffer.alloc(32, 2)).written).not.toBe(identityOf('account-one').written);
  });

  it('is the plain URL if the URL has no credentials', () => {
    expect(new UpstreamIdentity('https://api.example/v1', buildCredentialScrubber(['elsewhere']), KEY).written).toBe(
      'https://api.example/v1',
    );
  });

  it('matches the stored forms of earlier versions: no digest, in clear, or none', () => {
    const identity = identityOf('account-one');
    expect(identity.matches('https://api.example/accounts/[redacted]/v1')).toBe(true);
    expect(identity.matches(url('account-one'))).toBe(true);
    expect(identity.matches(undefined)).toBe(true);
    expect(identity.matches(url('account-two'))).toBe(false);
    expect(identity.matches('https://other.example/accounts/[redacted]/v1')).toBe(false);
  });
});
