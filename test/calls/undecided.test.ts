import { describe, expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway } from '../support/use-gateway.ts';

/** Tried in every way at every level. */
const INPUT = `{ type: object, properties: { f: { $ref: "#/$defs/f" } }, $defs: { f: { anyOf: [
    { type: object, properties: { not: { $ref: "#/$defs/f" } }, required: [not, note] },
    { type: object, properties: { not: { $ref: "#/$defs/f" } }, required: [not] }, { type: string }] } } }`;

const nested = (depth: number, inner: unknown): unknown =>
  depth === 0 ? inner : { not: nested(depth - 1, inner), note: 'x' };
const SLOW = { f: nested(60, 5) };
const QUICK = { f: nested(2, 'x') };

const policies = (url: string) => {
  const slow = (name: string, more = '') =>
    `  w.${name}: { upstream: w, input: ${INPUT}, request: { method: POST, path: /${name} }, once: { by: idempotent }${more} }\n`;
  return `
upstreams:
  w: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s }
tools:
${['call', 'dry', 'named', 'hand', 'back', 'other'].map((name) => slow(name)).join('')}
  w.plain: { upstream: w, request: { method: POST, path: /plain }, once: { by: idempotent } }
  w.undone: { upstream: w, request: { method: POST, path: /undone }, once: { by: idempotent }, undo: { kind: compensable, tool: w.hand, args: { f: "\${args.f}" } } }
  w.rolled: { upstream: w, request: { method: POST, path: /rolled }, once: { by: idempotent }, undo: { kind: compensable, tool: w.back, args: { f: "\${args.f}" } } }
agents:
  tester: { ${keysYaml(AGENT_KEY)}, rules: [{ allow: "*" }] }
  stranger: { ${keysYaml(OTHER_AGENT_KEY)}, rules: [{ allow: w.plain }] }
${PEOPLE_YAML}`;
};

const upstream = useHttpServer((request, response) => request.resume().on('end', () => response.end('{}')));
const { gateway } = useGateway({ upstream: 'none', policies: () => policies(upstream.url) });

describe('arguments whose check takes too long', () => {
  it('are not called bad: the answer is 503, and no key is bound', async () => {
    const { status, body, headers } = await gateway.call('w.call', SLOW, { key: 'k1' });
    expect({ status, ...body }).toMatchObject({ status: 503, code: 'unavailable', retry: 'after_delay' });
    expect(body.detail).toContain('It takes too long to tell whether these arguments fit w.call');
    expect(Number(headers.get('retry-after'))).toBeGreaterThanOrEqual(10);
    expect((await gateway.call('w.call', QUICK, { key: 'k1' })).body.code).toBe('unavailable');
    expect((await gateway.call('w.plain', {}, { key: 'k1' })).status).toBe(200);
  });

  it('are not checked for an agent that may not call the tool at all', async () => {
    const strange = await gateway.call('w.other', SLOW, { key: 'k6', agentKey: OTHER_AGENT_KEY });
    expect(strange.body.code).toBe('denied');
    // Otherwise it would be left alone now.
    expect((await gateway.call('w.other', QUICK, { key: 'k7' })).status).toBe(200);
  });

  it('are answered so in a dry run', async () => {
    const { status, body } = await gateway.call('w.dry', SLOW, { headers: { 'oncegate-dry-run': '?1' } });
    expect(status).toBe(200);
    expect(body).toMatchObject({ detail: expect.stringContaining('too long'), wouldAnswer: { code: 'unavailable' } });
  });

  it('are answered so when they are those of an undo that the caller names', async () => {
    const undo = { 'oncegate-undo': JSON.stringify({ tool: 'w.named', args: SLOW }) };
    const { body } = await gateway.call('w.plain', {}, { key: 'k2', headers: undo });
    expect(body).toMatchObject({
      code: 'unavailable',
      detail: expect.stringMatching(/^Oncegate-Undo: It takes too long/),
    });
    expect((await gateway.call('w.plain', { other: 1 }, { key: 'k2' })).status).toBe(200);
  });

  it('are answered so when a person gives them for an undo', async () => {
    const { body } = await gateway.call('w.undone', { f: 'x' }, { key: 'k3' });
    const asked = { reason: 'wrong', args: SLOW };
    expect((await gateway.admin('POST', `/admin/calls/${body.txn}/undo`, asked)).body.code).toBe('unavailable');
  });

  it('park the undo that they are of, which says why', async () => {
    const { body } = await gateway.call('w.rolled', SLOW, { key: 'k4' });
    await gateway.admin('POST', `/admin/calls/${body.txn}/undo`, { reason: 'wrong' });
    const { undo } = await gateway.waitForCall(body.txn, (now) => now.undo.state === 'failed');
    expect(undo.reason).toBe('checking the undo arguments against the schema of w.back takes too long');
    // Another is not its fault: it is tried when that is over.
    const other = await gateway.call('w.rolled', QUICK, { key: 'k5' });
    await gateway.admin('POST', `/admin/calls/${other.body.txn}/undo`, { reason: 'wrong' });
    await gateway.waitForCall(other.body.txn, (now) => now.undo.state === 'done', 30_000);
  }, 60_000);
});
