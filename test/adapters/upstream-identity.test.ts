import { describe, expect, it } from 'vitest';
import { UpstreamIdentity } from '../../adapters/upstream-identity.ts';
import { buildCredentialScrubber } from '../../gateway/domain/calls/redact.ts';

const KEY = Buffer.alloc(32, 1);
const url = (account: string) => `https://api.example/accounts/${account}/v1`;
const placeOf = (account: string, key = KEY) =>
  new UpstreamIdentity(url(account), buildCredentialScrubber([account]), key);

describe('where a service is', () => {
  it('is written down without the credentials in it, and another account is another place all the same', () => {
    const [one, two] = [placeOf('account-one'), placeOf('account-two')];
    expect(one.written).toMatch(/^https:\/\/api\.example\/accounts\/\[redacted\]\/v1#[0-9a-f]{16}$/);
    expect(one.matches(placeOf('account-one').written)).toBe(true);
    expect(one.matches(two.written)).toBe(false);
  });

  it('cannot be guessed from what is written without the key', () => {
    expect(placeOf('account-one', Buffer.alloc(32, 2)).written).not.toBe(placeOf('account-one').written);
  });

  it('is written as it is where it holds no credential', () => {
    expect(new UpstreamIdentity('https://api.example/v1', buildCredentialScrubber(['elsewhere']), KEY).written).toBe(
      'https://api.example/v1',
    );
  });

  it('is found again in what earlier versions wrote: no digest, or in clear, or nothing', () => {
    const place = placeOf('account-one');
    expect(place.matches('https://api.example/accounts/[redacted]/v1')).toBe(true);
    expect(place.matches(url('account-one'))).toBe(true);
    expect(place.matches(undefined)).toBe(true);
    expect(place.matches(url('account-two'))).toBe(false);
    expect(place.matches('https://other.example/accounts/[redacted]/v1')).toBe(false);
  });
});
