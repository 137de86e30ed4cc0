import { describe, expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway } from '../support/use-gateway.ts';

/** A validator tries every branch of `anyOf` at every level, so its time grows exponentially with the depth. */
const INPUT = `{ type: object, properties: { f: { $ref: "#/$defs/f" } }, $defs: { f: { anyOf: [
    { type: object, properties: { not: { $ref: "#/$defs/f" } }, required: [not, note] },
    { type: object, properties: { not: { $ref: "#/$defs/f" } }, required: [not] }, { type: string }] } } }`;

const nest = (depth: number, inner: unknown): unknown =>
  depth === 0 ? inner : { not: nest(depth - 1, inner), note: 'x' };
const SLOW = { f: nest(60, 5) };
const QUICK = { f: nest(2, 'x') };

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

describe('arguments whose validation takes too long', () => {
  it('are answered with 503, not 400, and bind no key', async () => {
    const { status, body, headers } = await gateway.call('w.call', SLOW, { key: 'k1' });
    expect({ status, ...body }).toMatchObject({ status: 503, code: 'unavailable', retry: 'after_delay' });
    expect(body.detail).toContain('Checking these arguments against the input schema of w.call takes too long');
    expect(Number(headers.get('retry-after'))).toBeGreaterThanOrEqual(10);
    expect((await gateway.call('w.call', QUICK, { key: 'k1' })).body.code).toBe('unavailable');
    expect((await gateway.call('w.plain', {}, { key: 'k1' })).status).toBe(200);
  });

  it('are not validated for an agent that may not call the tool', async () => {
    const denied = await gateway.call('w.other', SLOW, { key: 'k6', agentKey: OTHER_AGENT_KEY });
    expect(denied.body.code).toBe('denied');
    // Had the slow arguments been validated, the tool would be suspended and this call refused.
    expect((await gateway.call('w.other', QUICK, { key: 'k7' })).status).toBe(200);
  });

  it('make a dry run predict 503', async () => {
    const { status, body } = await gateway.call('w.dry', SLOW, { headers: { 'oncegate-dry-run': '?1' } });
    expect(status).toBe(200);
    expect(body).toMatchObject({ detail: expect.stringContaining('too long'), wouldAnswer: { code: 'unavailable' } });
  });

  it('are answered with 503 if they belong to an undo that the caller names', async () => {
    const undo = { 'oncegate-undo': JSON.stringify({ tool: 'w.named', args: SLOW }) };
    const { body } = await gateway.call('w.plain', {}, { key: 'k2', headers: undo });
    expect(body).toMatchObject({
      code: 'unavailable',
      detail: expect.stringMatching(/^Oncegate-Undo: Checking these arguments .* takes too long/),
    });
    expect((await gateway.call('w.plain', { other: 1 }, { key: 'k2' })).status).toBe(200);
  });

  it('are answered with 503 if a person enters them for an undo', async () => {
    const { body } = await gateway.call('w.undone', { f: 'x' }, { key: 'k3' });
    const input = { reason: 'wrong', args: SLOW };
    expect((await gateway.admin('POST', `/admin/calls/${body.txn}/undo`, input)).body.code).toBe('unavailable');
  });

  it('fail the undo that needs them, with a reason', async () => {
    const { body } = await gateway.call('w.rolled', SLOW, { key: 'k4' });
    await gateway.admin('POST', `/admin/calls/${body.txn}/undo`, { reason: 'wrong' });
    const { undo } = await gateway.waitForCall(body.txn, (now) => now.undo.state === 'failed');
    expect(undo.reason).toBe('checking the undo arguments against the schema of w.back takes too long');
    // Another undo with the same tool runs when the suspension ends.
    const other = await gateway.call('w.rolled', QUICK, { key: 'k5' });
    await gateway.admin('POST', `/admin/calls/${other.body.txn}/undo`, { reason: 'wrong' });
    await gateway.waitForCall(other.body.txn, (now) => now.undo.state === 'done', 30_000);
  }, 60_000);
});
