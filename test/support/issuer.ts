import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type CryptoKey, exportJWK, generateKeyPair, type JWK } from 'jose';
import { useResource } from './use-resource.ts';

export interface IssuerKey {
  readonly publicKey: CryptoKey;
  readonly privateKey: CryptoKey;
  readonly kid: string;
}

/** An OIDC issuer with the two routes that a gateway reads: discovery and keys. Its keys can be rotated. */
export class TestIssuer {
  readonly requestedPaths: string[] = [];
  keys: JWK[] = [];
  /** Whether the issuer leaves requests unanswered. */
  isSilent = false;
  readonly #server: Server;

  constructor() {
    this.#server = createServer((request, response) => {
      this.requestedPaths.push(request.url ?? '');
      if (this.isSilent) return;
      const body = request.url?.endsWith('/.well-known/openid-configuration')
        ? { issuer: this.url, jwks_uri: `${this.url}/keys` }
        : { keys: this.keys };
      response.setHeader('content-type', 'application/json').end(JSON.stringify(body));
    });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async listen(port = 0): Promise<void> {
    await new Promise<void>((done) => this.#server.listen(port, '127.0.0.1', done));
  }

  /** A new RS256 key, published beside the others. */
  async addKey(kid: string): Promise<IssuerKey> {
    const pair = await generateKeyPair('RS256', { extractable: true });
    this.keys.push({ ...(await exportJWK(pair.publicKey)), kid, alg: 'RS256', use: 'sig' });
    return { ...pair, kid };
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((done) => this.#server.close(done));
  }
}

export function useIssuer(): TestIssuer {
  const start = async () => {
    const issuer = new TestIssuer();
    await issuer.listen();
    return issuer;
  };
  return useResource(start, (issuer) => issuer.close());
}
