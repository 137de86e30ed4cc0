import { exportJWK, exportSPKI, generateKeyPair, SignJWT, UnsecuredJWT } from 'jose';
import { beforeAll, describe, expect, it } from 'vitest';
import { compilePolicyText } from '../policy/example.ts';
import { PEOPLE_YAML } from '../support/gateway.ts';
import { type IssuerKey, useIssuer } from '../support/issuer.ts';
import { useGateway } from '../support/use-gateway.ts';

const RULES = 'rules: [{ allow: world.read }]';
const issuer = useIssuer();
/** Stops and starts again during the tests. */
const restartedIssuer = useIssuer();
const silentIssuer = useIssuer();
let key: IssuerKey;
beforeAll(async () => {
  silentIssuer.isSilent = true;
  key = await issuer.addKey('first');
});

const { gateway } = useGateway({
  policies: (url) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.read: { upstream: world, effect: read, input: { type: object, properties: { id: { type: string } }, required: [id] }, request: { method: GET, path: "/read/items/\${args.id}" } }
agents:
  biller: { jwt: { issuer: "${issuer.url}", audience: gate, claims: { team: billing }, allowPrivate: true }, ${RULES} }
  clerk: { jwt: { issuer: "${issuer.url}", audience: gate, claims: { team: clerks, robot: true }, allowPrivate: true }, ${RULES} }
  other-door: { jwt: { issuer: "${issuer.url}", audience: other, allowPrivate: true }, ${RULES} }
  orphan: { jwt: { issuer: "${restartedIssuer.url}", audience: gate, allowPrivate: true }, ${RULES} }
  patient: { jwt: { issuer: "${silentIssuer.url}", audience: gate, allowPrivate: true }, ${RULES} }
${PEOPLE_YAML}`,
});

interface TokenOptions {
  readonly iss?: string;
  readonly aud?: string | string[];
  readonly exp?: string | number;
  readonly nbf?: string;
  readonly claims?: Record<string, unknown>;
  readonly by?: IssuerKey;
}

function sign(options: TokenOptions = {}): Promise<string> {
  const by = options.by ?? key;
  const token = new SignJWT(options.claims ?? { team: 'billing' })
    .setProtectedHeader({ alg: 'RS256', kid: by.kid })
    .setIssuer(options.iss ?? issuer.url)
    .setAudience(options.aud ?? 'gate')
    .setIssuedAt();
  if (options.nbf !== undefined) token.setNotBefore(options.nbf);
  return token.setExpirationTime(options.exp ?? '5m').sign(by.privateKey);
}
const callWithToken = (token: string) => gateway.call('world.read', { id: 'x' }, { agentKey: token });
const expectRefused = async (token: string) => {
  const answer = await callWithToken(token);
  expect(answer.body).toMatchObject({ status: 401, code: 'unauthenticated', retry: 'never' });
  expect(answer.headers.get('www-authenticate')).toContain('Bearer');
  return answer.body.detail as string;
};
const agentOf = async (txn: string) => (await gateway.admin('GET', `/admin/calls/${txn}`)).body.agent;

describe('a token', () => {
  it('of a known issuer identifies the agent whose claims match', async () => {
    const biller = await callWithToken(await sign());
    expect(biller.status).toBe(200);
    expect(await agentOf(biller.body.txn)).toBe('biller');
    const clerk = await callWithToken(
      await sign({ aud: ['gate', 'elsewhere'], claims: { team: 'clerks', robot: true } }),
    );
    expect(clerk.status).toBe(200);
    expect(await agentOf(clerk.body.txn)).toBe('clerk');
    const token = await sign();
    expect((await gateway.get(`/v1/calls/${biller.body.txn}`, token)).status).toBe(200);
    expect((await gateway.get(`/v1/calls/${clerk.body.txn}`, token)).status).toBe(404);
    expect((await gateway.get('/openapi.json', token)).body.paths).toHaveProperty('/v1/tools/world.read');
    expect((await gateway.get('/admin/calls', token)).status).toBe(403);
  });

  it('is refused when expired or not yet valid, with a minute of tolerance', async () => {
    const now = Math.floor(Date.now() / 1000);
    expect(await expectRefused(await sign({ exp: now - 90 }))).toContain('expired');
    expect((await callWithToken(await sign({ exp: now - 30 }))).status).toBe(200);
    await expectRefused(await sign({ nbf: '2m' }));
    expect((await callWithToken(await sign({ nbf: '30s' }))).status).toBe(200);
    const withoutExpiry = await new SignJWT({ team: 'billing' })
      .setProtectedHeader({ alg: 'RS256', kid: key.kid })
      .setIssuer(issuer.url)
      .setAudience('gate')
      .sign(key.privateKey);
    await expectRefused(withoutExpiry);
  });

  it('is refused for another audience, from another issuer, or with other claims', async () => {
    await expectRefused(await sign({ aud: 'elsewhere' }));
    expect(await expectRefused(await sign({ iss: 'https://evil.example' }))).toContain('issuer');
    await expectRefused(await sign({ claims: { team: 'strangers' } }));
    await expectRefused(await sign({ claims: {} }));
    await expectRefused(await sign({ claims: { team: 'clerks', robot: 'true' } }));
    await expectRefused(await sign({ claims: { team: ['billing'] } }));
    expect(await expectRefused(await sign({ aud: ['gate', 'other'] }))).toContain('More than one agent');
  });

  it('is refused unsigned, signed with the public key as a secret, altered, or signed with another key', async () => {
    const unsigned = new UnsecuredJWT({ team: 'billing' })
      .setIssuer(issuer.url)
      .setAudience('gate')
      .setExpirationTime('5m')
      .encode();
    await expectRefused(unsigned);
    for (const secret of [await exportSPKI(key.publicKey), JSON.stringify(issuer.keys[0])]) {
      const confused = await new SignJWT({ team: 'billing' })
        .setProtectedHeader({ alg: 'HS256', kid: key.kid })
        .setIssuer(issuer.url)
        .setAudience('gate')
        .setExpirationTime('5m')
        .sign(Buffer.from(secret));
      expect(await expectRefused(confused)).toContain('algorithm');
    }
    const good = await sign();
    const [head, , signature] = good.split('.');
    const [, forged] = (await sign({ claims: { team: 'clerks', robot: true } })).split('.');
    await expectRefused(`${head}.${forged}.${signature}`);
    const stranger = await generateKeyPair('RS256');
    expect(await expectRefused(await sign({ by: { ...stranger, kid: key.kid } }))).toContain('signature');
    await expectRefused('a.b.c');
    await expectRefused('eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.');
  });

  it('with an unknown key is refused without a request to the issuer each time, and accepted after key rotation', async () => {
    const [spare] = [await generateKeyPair('RS256', { extractable: true })];
    const next: IssuerKey = { ...spare, kid: 'second' };
    const before = issuer.requestedPaths.length;
    for (let i = 0; i < 20; i += 1) await expectRefused(await sign({ by: next, claims: { team: 'billing', i } }));
    expect(issuer.requestedPaths.length - before).toBeLessThanOrEqual(2);
    issuer.keys = [{ ...(await exportJWK(next.publicKey)), kid: next.kid, alg: 'RS256', use: 'sig' }];
    await expect
      .poll(async () => (await callWithToken(await sign({ by: next }))).status, { timeout: 15_000 })
      .toBe(200);
    await expectRefused(await sign({ claims: { team: 'billing', late: true } }));
    key = next;
  });
});

describe('an unreachable issuer', () => {
  it('is reported as unavailable quickly, and works again when it is back', async () => {
    const pair = await restartedIssuer.addKey('down');
    const { url } = restartedIssuer;
    const token = await sign({ iss: url, by: pair });
    await restartedIssuer.close();
    const started = performance.now();
    const answers = await Promise.all(Array.from({ length: 10 }, () => callWithToken(token)));
    expect(performance.now() - started).toBeLessThan(3_000);
    for (const answer of answers) expect(answer.body).toMatchObject({ status: 503, code: 'unavailable' });
    expect(answers[0]?.headers.get('retry-after')).toBe('2');
    await restartedIssuer.listen(Number(new URL(url).port));
    await expect.poll(async () => (await callWithToken(token)).status, { timeout: 10_000 }).toBe(200);
    await restartedIssuer.close();
    expect((await callWithToken(await sign({ iss: url, by: pair, claims: { again: true } }))).status).toBe(200);
  });

  it('that accepts connections and never answers delays its own tokens briefly and other tokens not at all', async () => {
    const token = await sign({ iss: silentIssuer.url });
    const started = performance.now();
    const waiting = callWithToken(token);
    expect((await callWithToken(await sign({ claims: { team: 'billing', meanwhile: true } }))).status).toBe(200);
    expect((await waiting).status).toBe(503);
    expect(performance.now() - started).toBeLessThan(4_000);
    const again = performance.now();
    expect((await callWithToken(token)).status).toBe(503);
    expect(performance.now() - again).toBeLessThan(1_000);
  });
});

describe('policies', () => {
  const agents = (...specs: string[]) =>
    compilePolicyText(`agents:\n${specs.map((spec, i) => `  a${i}: { jwt: { ${spec} } }`).join('\n')}\n`);
  const faults = (...specs: string[]) => {
    const loaded = agents(...specs);
    return loaded.ok ? [] : loaded.faults.map(({ message }) => message);
  };
  const base = 'issuer: "https://id.example", audience: gate';

  it('are refused if two agents accept the same token', () => {
    expect(faults(base, base)[0]).toContain('Agent a0 accepts the same tokens.');
    expect(faults(`${base}, claims: { team: a }`, `${base}, claims: { robot: true }`)).toHaveLength(1);
    expect(faults(`${base}, claims: { team: a }`, base)).toHaveLength(1);
    expect(faults(`${base}, claims: { team: a }`, `${base}, claims: { team: b }`)).toEqual([]);
    expect(faults(base, 'issuer: "https://id.example", audience: other')).toEqual([]);
  });

  it('are refused if the issuer cannot be trusted', () => {
    expect(faults('issuer: "http://id.example", audience: gate')[0]).toContain('https://');
    expect(faults('issuer: "http://10.0.0.1", audience: gate, allowPrivate: true')).toEqual([]);
    expect(faults('issuer: "nonsense", audience: gate')[0]).toContain('must be a URL');
    expect(faults('issuer: "https://u:p@id.example", audience: gate')[0]).toContain('user name or password');
    expect(faults('issuer: "https://id.example"')).toHaveLength(1);
    expect(faults(base, 'issuer: "https://id.example", audience: x, allowPrivate: true')[0]).toContain('allowPrivate');
  });
});
