import { exportJWK, exportSPKI, generateKeyPair, SignJWT, UnsecuredJWT } from 'jose';
import { beforeAll, describe, expect, it } from 'vitest';
import { compilePolicyText } from '../policy/example.ts';
import { PEOPLE_YAML } from '../support/gateway.ts';
import { type IssuerKey, useIssuer } from '../support/issuer.ts';
import { useGateway } from '../support/use-gateway.ts';

const RULES = 'rules: [{ allow: world.read }]';
const issuer = useIssuer();
/** Stops and starts during the tests. */
const down = useIssuer();
const mute = useIssuer();
let key: IssuerKey;
beforeAll(async () => {
  mute.isSilent = true;
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
  orphan: { jwt: { issuer: "${down.url}", audience: gate, allowPrivate: true }, ${RULES} }
  patient: { jwt: { issuer: "${mute.url}", audience: gate, allowPrivate: true }, ${RULES} }
${PEOPLE_YAML}`,
});

interface Wish {
  readonly iss?: string;
  readonly aud?: string | string[];
  readonly exp?: string | number;
  readonly nbf?: string;
  readonly claims?: Record<string, unknown>;
  readonly by?: IssuerKey;
}

function sign(wish: Wish = {}): Promise<string> {
  const by = wish.by ?? key;
  const token = new SignJWT(wish.claims ?? { team: 'billing' })
    .setProtectedHeader({ alg: 'RS256', kid: by.kid })
    .setIssuer(wish.iss ?? issuer.url)
    .setAudience(wish.aud ?? 'gate')
    .setIssuedAt();
  if (wish.nbf !== undefined) token.setNotBefore(wish.nbf);
  return token.setExpirationTime(wish.exp ?? '5m').sign(by.privateKey);
}
const ask = (token: string) => gateway.call('world.read', { id: 'x' }, { agentKey: token });
const refused = async (token: string) => {
  const answer = await ask(token);
  expect(answer.body).toMatchObject({ status: 401, code: 'unauthenticated', retry: 'never' });
  expect(answer.headers.get('www-authenticate')).toContain('Bearer');
  return answer.body.detail as string;
};
const agentOf = async (txn: string) => (await gateway.admin('GET', `/admin/calls/${txn}`)).body.agent;

describe('a token', () => {
  it('of a named issuer makes its bearer the agent whose claims it has', async () => {
    const biller = await ask(await sign());
    expect(biller.status).toBe(200);
    expect(await agentOf(biller.body.txn)).toBe('biller');
    const clerk = await ask(await sign({ aud: ['gate', 'elsewhere'], claims: { team: 'clerks', robot: true } }));
    expect(clerk.status).toBe(200);
    expect(await agentOf(clerk.body.txn)).toBe('clerk');
    const token = await sign();
    expect((await gateway.get(`/v1/calls/${biller.body.txn}`, token)).status).toBe(200);
    expect((await gateway.get(`/v1/calls/${clerk.body.txn}`, token)).status).toBe(404);
    expect((await gateway.get('/openapi.json', token)).body.paths).toHaveProperty('/v1/tools/world.read');
    expect((await gateway.get('/admin/calls', token)).status).toBe(403);
  });

  it('is refused when its time is over or has not come, with a minute of tolerance', async () => {
    const now = Math.floor(Date.now() / 1000);
    expect(await refused(await sign({ exp: now - 90 }))).toContain('expired');
    expect((await ask(await sign({ exp: now - 30 }))).status).toBe(200);
    await refused(await sign({ nbf: '2m' }));
    expect((await ask(await sign({ nbf: '30s' }))).status).toBe(200);
    const endless = await new SignJWT({ team: 'billing' })
      .setProtectedHeader({ alg: 'RS256', kid: key.kid })
      .setIssuer(issuer.url)
      .setAudience('gate')
      .sign(key.privateKey);
    await refused(endless);
  });

  it('is refused for another audience, from another issuer, or with other claims', async () => {
    await refused(await sign({ aud: 'elsewhere' }));
    expect(await refused(await sign({ iss: 'https://evil.example' }))).toContain('issuer');
    await refused(await sign({ claims: { team: 'strangers' } }));
    await refused(await sign({ claims: {} }));
    await refused(await sign({ claims: { team: 'clerks', robot: 'true' } }));
    await refused(await sign({ claims: { team: ['billing'] } }));
    expect(await refused(await sign({ aud: ['gate', 'other'] }))).toContain('More than one agent');
  });

  it('is refused unsigned, signed with the public key as a secret, changed, or signed by somebody else', async () => {
    const unsigned = new UnsecuredJWT({ team: 'billing' })
      .setIssuer(issuer.url)
      .setAudience('gate')
      .setExpirationTime('5m')
      .encode();
    await refused(unsigned);
    for (const secret of [await exportSPKI(key.publicKey), JSON.stringify(issuer.keys[0])]) {
      const confused = await new SignJWT({ team: 'billing' })
        .setProtectedHeader({ alg: 'HS256', kid: key.kid })
        .setIssuer(issuer.url)
        .setAudience('gate')
        .setExpirationTime('5m')
        .sign(Buffer.from(secret));
      expect(await refused(confused)).toContain('algorithm');
    }
    const good = await sign();
    const [head, , signature] = good.split('.');
    const [, forged] = (await sign({ claims: { team: 'clerks', robot: true } })).split('.');
    await refused(`${head}.${forged}.${signature}`);
    const stranger = await generateKeyPair('RS256');
    expect(await refused(await sign({ by: { ...stranger, kid: key.kid } }))).toContain('signature');
    await refused('a.b.c');
    await refused('eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.');
  });

  it('with an unknown key is refused without asking the issuer each time, and taken once the keys are rotated', async () => {
    const [spare] = [await generateKeyPair('RS256', { extractable: true })];
    const next: IssuerKey = { ...spare, kid: 'second' };
    const before = issuer.requestedPaths.length;
    for (let i = 0; i < 20; i += 1) await refused(await sign({ by: next, claims: { team: 'billing', i } }));
    expect(issuer.requestedPaths.length - before).toBeLessThanOrEqual(2);
    issuer.keys = [{ ...(await exportJWK(next.publicKey)), kid: next.kid, alg: 'RS256', use: 'sig' }];
    await expect.poll(async () => (await ask(await sign({ by: next }))).status, { timeout: 15_000 }).toBe(200);
    await refused(await sign({ claims: { team: 'billing', late: true } }));
    key = next;
  });
});

describe('an issuer that cannot be asked', () => {
  it('is said to be unavailable, quickly, and is found again when it is back', async () => {
    const pair = await down.addKey('down');
    const { url } = down;
    const token = await sign({ iss: url, by: pair });
    await down.close();
    const started = performance.now();
    const answers = await Promise.all(Array.from({ length: 10 }, () => ask(token)));
    expect(performance.now() - started).toBeLessThan(3_000);
    for (const answer of answers) expect(answer.body).toMatchObject({ status: 503, code: 'unavailable' });
    expect(answers[0]?.headers.get('retry-after')).toBe('2');
    await down.listen(Number(new URL(url).port));
    await expect.poll(async () => (await ask(token)).status, { timeout: 10_000 }).toBe(200);
    await down.close();
    expect((await ask(await sign({ iss: url, by: pair, claims: { again: true } }))).status).toBe(200);
  });

  it('that accepts and never answers keeps nobody waiting, and others not at all', async () => {
    const token = await sign({ iss: mute.url });
    const started = performance.now();
    const waiting = ask(token);
    expect((await ask(await sign({ claims: { team: 'billing', meanwhile: true } }))).status).toBe(200);
    expect((await waiting).status).toBe(503);
    expect(performance.now() - started).toBeLessThan(4_000);
    const again = performance.now();
    expect((await ask(token)).status).toBe(503);
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

  it('name two agents that would accept the same token', () => {
    expect(faults(base, base)[0]).toContain('Agent a0 accepts the same tokens.');
    expect(faults(`${base}, claims: { team: a }`, `${base}, claims: { robot: true }`)).toHaveLength(1);
    expect(faults(`${base}, claims: { team: a }`, base)).toHaveLength(1);
    expect(faults(`${base}, claims: { team: a }`, `${base}, claims: { team: b }`)).toEqual([]);
    expect(faults(base, 'issuer: "https://id.example", audience: other')).toEqual([]);
  });

  it('want an issuer that can be trusted', () => {
    expect(faults('issuer: "http://id.example", audience: gate')[0]).toContain('https://');
    expect(faults('issuer: "http://10.0.0.1", audience: gate, allowPrivate: true')).toEqual([]);
    expect(faults('issuer: "nonsense", audience: gate')[0]).toContain('must be a URL');
    expect(faults('issuer: "https://u:p@id.example", audience: gate')[0]).toContain('user name or password');
    expect(faults('issuer: "https://id.example"')).toHaveLength(1);
    expect(faults(base, 'issuer: "https://id.example", audience: x, allowPrivate: true')[0]).toContain('allowPrivate');
  });
});
