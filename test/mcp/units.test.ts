import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { McpAdapter } from '../../adapters/mcp/mcp-adapter.ts';
import { type ServerSentEvent, SseParser } from '../../adapters/mcp/sse-parser.ts';
import { GatewayError } from '../../gateway/domain/errors.ts';
import type { JsonObject } from '../../gateway/domain/json.ts';
import { createSessionId, parseSessionCapabilities } from '../../gateway/mcp/clients.ts';
import { deriveContinuationKey, FRAMEWORK_IDS, readKey, readMetaText } from '../../gateway/mcp/keys.ts';
import { compilePolicies } from '../../gateway/policy/load-policies.ts';

const bytes = new TextEncoder();
const parseAll = (text: string): ServerSentEvent[] => new SseParser().parse(bytes.encode(text));

/** Parses the same bytes, split at any offsets. */
function parseSplit(text: string, at: readonly number[]): ServerSentEvent[] {
  const whole = bytes.encode(text);
  const offsets = [...new Set(at.map((offset) => offset % (whole.length + 1)))].sort((a, b) => a - b);
  const parser = new SseParser();
  return [...offsets, whole.length].flatMap((end, i) => parser.parse(whole.subarray(offsets[i - 1] ?? 0, end)));
}

describe('the parser of server-sent events', () => {
  const line = fc.oneof(
    fc.string({ unit: 'grapheme' }).map((data) => `data: ${data.replaceAll(/[\r\n]/g, '')}`),
    fc.constantFrom(
      'data',
      'data:',
      'id: 7',
      'id: a\0b',
      'retry: 250',
      'retry: soon',
      ': comment',
      'event: message',
      '',
    ),
  );
  const stream = fc.array(fc.tuple(line, fc.constantFrom('\n', '\r\n', '\r')), { maxLength: 30 });

  it('returns the same events however the bytes are split', () => {
    fc.assert(
      fc.property(stream, fc.array(fc.nat()), (lines, at) => {
        const text = `${lines.map(([content, end]) => content + end).join('')}\n\n`;
        expect(parseSplit(text, at)).toEqual(parseAll(text));
        expect(
          parseSplit(
            text,
            Array.from({ length: bytes.encode(text).length }, (_, i) => i),
          ),
        ).toEqual(parseAll(text));
      }),
    );
  });

  it('joins the data lines of an event and ignores other fields', () => {
    expect(parseAll(': hi\nevent: message\ndata: a\ndata:b\nid: 1\n\ndata\n\n')).toEqual([
      { id: '1', data: 'a\nb' },
      { id: undefined, data: '' },
    ]);
  });

  it('keeps an unfinished event and the retry time', () => {
    const parser = new SseParser();
    expect(parser.parse(bytes.encode('retry: 250\ndata: half'))).toEqual([]);
    expect(parser.retryMs).toBe(250);
    expect(parser.parse(bytes.encode('\n\n'))).toEqual([{ id: undefined, data: 'half' }]);
  });

  it('reads a line of many chunks in linear time', () => {
    const parser = new SseParser();
    const chunk = bytes.encode('x'.repeat(1_024));
    parser.parse(bytes.encode('data: '));
    for (let i = 0; i < 32 * 1_024; i += 1) parser.parse(chunk);
    expect(parser.parse(bytes.encode('\n\n'))[0]?.data.length).toBe(32 * 1_024 * 1_024);
  });
});

describe('the key of a tools/call', () => {
  const visible = fc.stringMatching(/^[\x21\x23-\x7e][\x21-\x7e]{0,254}$/);
  /** Ends in a letter, because a counter is not accepted as a key. */
  const unique = fc.stringMatching(/^[\x21\x23-\x7e][\x21-\x7e]{0,200}x$/);

  it('is the first of: the key in _meta, the header, the framework ids in order', () => {
    fc.assert(
      fc.property(visible, visible, unique, fc.constantFrom(...FRAMEWORK_IDS), (own, header, id, name) => {
        expect(readKey({ 'oncegate/idempotency-key': own, [name]: id }, header)).toBe(own);
        expect(readKey({ [name]: id }, header)).toBe(header);
        expect(readKey({ [name]: id }, undefined)).toBe(id);
      }),
    );
    const [first, second] = FRAMEWORK_IDS;
    expect(readKey({ [second]: 'b', [first]: 'a' }, undefined)).toBe('a');
    expect(readKey({}, undefined)).toBeUndefined();
    expect(readKey({ [first]: '', [second]: { id: 'x' } }, undefined)).toBeUndefined();
  });

  it('from a framework id can always be stored, and different ids give different keys', () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (one, two) => {
        const [a, b] = [one, two].map((id) => readKey({ toolCallId: `${id}x` }, undefined));
        expect(a).toMatch(/^[\x21-\x7e]{1,255}$/);
        expect(a === b).toBe(one === two);
      }),
    );
  });

  it('is not taken from a counter, because the next run starts at the same number', () => {
    for (const id of [
      '0',
      '17',
      'call_0',
      'call-12',
      'functions.charge:3',
      'functions.payments__createPaymentIntent:0',
    ])
      expect(readKey({ toolCallId: id }, undefined)).toBeUndefined();
    for (const id of ['call_Xy7', 'call_01JABCDEFGH', '0b6e0f4e-6c7f-4bb5-9f0e-1d2c3b4a5968'])
      expect(readKey({ toolCallId: id }, undefined)).toBe(id);
    expect(readKey({ 'claudecode/toolUseId': 'toolu_1' }, undefined)).toBe('toolu_1');
  });

  it('is refused, not ignored, if it is malformed', () => {
    for (const own of [7, '', 'with space', 'ü', 'x'.repeat(256), null])
      expect(() => readKey({ 'oncegate/idempotency-key': own as string }, 'header')).toThrow(GatewayError);
    expect(() => readMetaText({ 'oncegate/saga': {} }, 'oncegate/saga')).toThrow(GatewayError);
  });

  it('of a continuation depends on the answers that it carries', () => {
    const responses = fc.dictionary(fc.string(), fc.string());
    fc.assert(
      fc.property(visible, visible, responses, responses, (key, other, one, two) => {
        const of = (name: string, inputResponses: JsonObject) => deriveContinuationKey(name, { inputResponses });
        expect(of(key, one)).toBe(of(key, structuredClone(one)));
        expect(of(key, one)).not.toBe(key);
        if (key !== other) expect(of(key, one)).not.toBe(of(other, one));
        if (JSON.stringify(Object.entries(one).sort()) !== JSON.stringify(Object.entries(two).sort()))
          expect(of(key, one)).not.toBe(of(key, two));
      }),
    );
  });
});

describe('a session', () => {
  it('tells any replica the capabilities of its client', () => {
    expect(
      parseSessionCapabilities(createSessionId({ elicitation: {}, roots: { listChanged: true }, experimental: {} })),
    ).toEqual({
      elicitation: {},
      roots: {},
    });
    for (const strange of [undefined, '', 'x', '.esr', `${'0'.repeat(36)}.esrx`])
      expect(parseSessionCapabilities(strange)).toEqual({});
  });
});

describe('the request of an MCP tool', () => {
  const policies = compilePolicies(
    [
      {
        name: 'p.yaml',
        file: 'p.yaml',
        bytes: Buffer.from(`
upstreams: { crm: { adapter: mcp, command: [node, nothing.mjs] } }
tools:
  crm.make: { upstream: crm, once: { by: none } }
  crm.find: { upstream: crm, effect: read }`),
      },
    ],
    {},
  );
  const prepared = (name: string) => {
    if (!policies.ok) throw new Error(JSON.stringify(policies.faults));
    const [upstream, tool] = [policies.policies.upstreams.get('crm'), policies.policies.tools.get(name)];
    if (upstream === undefined || tool === undefined) throw new Error('The upstream or the tool is missing.');
    const { body } = new McpAdapter(upstream, Buffer.alloc(32)).prepare(tool, { args: {}, agent: 'a' }, 'the-txn');
    return JSON.parse(body ?? '')._meta as Record<string, string>;
  };

  it('carries the txn; a read does not, because its answer could be taken for the answer of a write', () => {
    expect(prepared('crm.make')).toEqual({ progressToken: 'the-txn', 'oncegate/idempotency-key': 'the-txn' });
    const reads = [prepared('crm.find'), prepared('crm.find')];
    expect(reads.map((meta) => Object.keys(meta))).toEqual([['progressToken'], ['progressToken']]);
    expect(new Set([...reads.map(({ progressToken }) => progressToken), 'the-txn']).size).toBe(3);
  });
});
