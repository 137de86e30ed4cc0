import { describe, expect, it } from 'vitest';
import { useMcpServer } from '../mcp/use-mcp-server.ts';
import { testerYaml } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway } from '../support/use-gateway.ts';

/** The first UTF-16 unit of 😀 is a lone surrogate, which a request must not contain. */
const CUT = `"\${args.text.substring(0, 1)}"`;
const SMILE = { text: '😀a' };

const policies = (url: string, mcpUrl: string) => `
upstreams:
  w: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s }
  world: { adapter: mcp, url: "${mcpUrl}", allowPrivate: true, timeout: 2s }
tools:
  w.body: { upstream: w, request: { method: POST, path: /body, body: { text: ${CUT} } }, once: { by: idempotent } }
  w.query: { upstream: w, request: { method: POST, path: /query, query: { q: ${CUT} } }, once: { by: idempotent } }
  w.path: { upstream: w, request: { method: POST, path: "/path/\${args.text.substring(0, 1)}" }, once: { by: idempotent } }
  w.header: { upstream: w, request: { method: POST, path: /header, headers: { x-text: ${CUT} } }, once: { by: idempotent } }
  w.search: { upstream: w, effect: read, request: { method: POST, path: /search, body: { text: ${CUT} } } }
  w.seen:
    upstream: w
    request: { method: POST, path: /seen }
    once: { by: idempotent }
    observe: { tool: w.search, args: { text: "\${args.text}" }, satisfied: "false" }
    retry: { attempts: 1, base: 10ms, max: 20ms, within: 1s }
  w.observed:
    upstream: w
    request: { method: POST, path: /observed }
    once: { by: idempotent }
    observe: { tool: world.find, args: { id: ${CUT} }, satisfied: "false" }
    retry: { attempts: 1, base: 10ms, max: 20ms, within: 1s }
  world.find: { upstream: world, effect: read, input: { type: object } }
  w.step:
    upstream: w
    request: { method: POST, path: /step }
    once: { by: idempotent }
    undo: { kind: compensable, tool: w.body, args: { text: "\${args.text}" } }
${testerYaml('[{ allow: "*" }]')}`;

const paths: string[] = [];
const upstream = useHttpServer((request, response) => {
  paths.push(request.url ?? '');
  request.resume().on('end', () => response.end('{}'));
});
const mcp = useMcpServer();
const { gateway } = useGateway({ upstream: 'none', policies: () => policies(upstream.url, mcp.url) });

describe('a lone surrogate that a template cuts out of valid arguments', () => {
  it.each(['body', 'query', 'path', 'header'])('is refused in the %s of a request', async (part) => {
    const { status, body } = await gateway.call(`w.${part}`, SMILE, { key: part });
    expect([status, body.code]).toEqual([400, 'invalid_arguments']);
    expect(body.detail).toContain(`The request of w.${part} cannot be built from these arguments`);
    expect((await gateway.call(`w.${part}`, { text: 'ab' }, { key: part })).status).toBe(200);
  });

  it('stops an observation, and the answer says so', async () => {
    const { status, body } = await gateway.call('w.seen', SMILE, { key: 'seen' });
    expect([status, body.code]).toEqual([503, 'unavailable']);
    expect(body.detail).toContain('w.search cannot be built from these arguments');
    expect(paths).not.toContain('/seen');
  });

  it('stops an observation through an MCP server, and the answer says so', async () => {
    const { status, body } = await gateway.call('w.observed', SMILE, { key: 'observed' });
    expect([status, body.code]).toEqual([503, 'unavailable']);
    expect(body.detail).toContain('a lone surrogate');
    expect(paths).not.toContain('/observed');
  });

  it('fails an undo, with the reason', async () => {
    const { body } = await gateway.call('w.step', SMILE, { key: 'step' });
    await gateway.admin('POST', `/admin/calls/${body.txn}/undo`, { reason: 'wrong' });
    const { undo } = await gateway.waitForCall(body.txn, (now) => now.undo.state === 'failed', 10_000);
    expect(undo.reason).toContain('The request of w.body cannot be built from these arguments');
  });
});
