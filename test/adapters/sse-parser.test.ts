import { describe, expect, it } from 'vitest';
import { SseParser } from '../../adapters/mcp/sse-parser.ts';

const encoder = new TextEncoder();
const MAX_BYTES = 1_000;

function feed(parser: SseParser, text: string, chunkLength = text.length): string[] {
  const bytes = encoder.encode(text);
  const data: string[] = [];
  for (let at = 0; at < bytes.length; at += chunkLength)
    data.push(...parser.parse(bytes.subarray(at, at + chunkLength)).map((event) => event.data));
  return data;
}

describe('the limit of an event that has not ended', () => {
  it.each([
    ['one long line', `data: ${'x'.repeat(MAX_BYTES)}`],
    ['one long line of multi-byte characters', `data: ${'€'.repeat(MAX_BYTES / 3)}`],
    ['one long line without a field name', 'x'.repeat(MAX_BYTES + 1)],
    ['a long comment', `: ${'x'.repeat(MAX_BYTES)}`],
    ['many short lines', 'data: 0123456789\n'.repeat(MAX_BYTES / 10)],
  ])('refuses %s, in chunks of any size', (_, text) => {
    for (const chunkLength of [1, 7, 100]) {
      const parser = new SseParser(MAX_BYTES);
      expect(feed(parser, text, chunkLength)).toEqual([]);
      expect(parser.isTooLarge).toBe(true);
      expect(feed(parser, '\n\ndata: later\n\n')).toEqual([]);
    }
  });

  it('does not count events that have ended, comments and other fields', () => {
    const parser = new SseParser(MAX_BYTES);
    for (let i = 0; i < MAX_BYTES; i += 1) {
      feed(parser, ': keep-alive\n', 5);
      feed(parser, 'event: ping\n\n', 5);
      expect(feed(parser, 'data: x\n\n', 5)).toEqual(['x']);
    }
    expect(parser.isTooLarge).toBe(false);
  });
});

describe('garbage in a stream', () => {
  it('is ignored, and the events around it are parsed', () => {
    expect(feed(new SseParser(MAX_BYTES), '\uFEFFdata: a\n\nwhat: ever\n<html>\nData: b\ndata: c\n\n')).toEqual([
      'a',
      'c',
    ]);
  });

  it('that is not UTF-8 becomes replacement characters', () => {
    const parser = new SseParser(MAX_BYTES);
    expect(parser.parse(Buffer.concat([Buffer.from('data: '), Buffer.from([0xff]), Buffer.from('\n\n')]))).toEqual([
      { id: undefined, data: '\uFFFD' },
    ]);
  });

  it.each([
    ['retry: 250\n', 250],
    ['retry: soon\n', undefined],
    ['retry: -1\n', undefined],
    ['retry: 9999999999\n', undefined],
  ])('%j asks for a pause of %s ms', (text, expected) => {
    const parser = new SseParser(MAX_BYTES);
    feed(parser, text);
    expect(parser.retryMs).toBe(expected);
  });
});

describe('an event without data', () => {
  it.each([
    ['id: 1\n\n', [{ id: '1', data: '' }]],
    [
      'retry: 100\r\nid: 1\r\n\r\ndata: x\r\n\r\n',
      [
        { id: '1', data: '' },
        { id: undefined, data: 'x' },
      ],
    ],
    [
      'id: 1\rdata: x\r\rid: 2\r\r\n',
      [
        { id: '1', data: 'x' },
        { id: '2', data: '' },
      ],
    ],
    ['id: 1\n', []],
    ['event: ping\n\n', []],
    ['id: 1\0\n\n', []],
    ['id\n\n', [{ id: '', data: '' }]],
    ['id: 1\ndata\n\n', [{ id: '1', data: '' }]],
  ])('is reported only if it has an id: %j', (text, expected) => {
    for (const chunkLength of [1, 2, 3, text.length]) {
      const parser = new SseParser(MAX_BYTES);
      const bytes = encoder.encode(text);
      const events = [];
      for (let at = 0; at < bytes.length; at += chunkLength)
        events.push(...parser.parse(bytes.subarray(at, at + chunkLength)));
      expect(events).toEqual(expected);
    }
  });
});
