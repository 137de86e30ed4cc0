import { describe, expect, it } from 'vitest';
import { Place } from '../../adapters/place.ts';
import { scrubber } from '../../gateway/domain/redact.ts';

const KEY = Buffer.alloc(32, 1);
const url = (account: string) => `https://api.example/accounts/${account}/v1`;
const placeOf = (account: string, key = KEY) => new Place(url(account), scrubber([account]), key);

describe('where a service is', () => {
  it('is written down without the credentials in it, and another account is another place all the same', () => {
    const [one, two] = [placeOf('account-one'), placeOf('account-two')];
    expect(one.written).toMatch(/^https:\/\/api\.example\/accounts\/\[redacted\]\/v1#[0-9a-f]{16}$/);
    expect(one.is(placeOf('account-one').written)).toBe(true);
    expect(one.is(two.written)).toBe(false);
  });

  it('cannot be guessed from what is written without the key', () => {
    expect(placeOf('account-one', Buffer.alloc(32, 2)).written).not.toBe(placeOf('account-one').written);
  });

  it('is written as it is where it holds no credential', () => {
    expect(new Place('https://api.example/v1', scrubber(['elsewhere']), KEY).written).toBe('https://api.example/v1');
  });

  it('is found again in what earlier versions wrote: no digest, or in clear, or nothing', () => {
    const place = placeOf('account-one');
    expect(place.is('https://api.example/accounts/[redacted]/v1')).toBe(true);
    expect(place.is(url('account-one'))).toBe(true);
    expect(place.is(undefined)).toBe(true);
    expect(place.is(url('account-two'))).toBe(false);
    expect(place.is('https://other.example/accounts/[redacted]/v1')).toBe(false);
  });
});
