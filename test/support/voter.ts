import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { isSignatureValid, signBody } from '../../gateway/domain/webhook-signature.ts';

export interface ReceivedVoteRequest {
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into requests of every shape
  readonly body: any;
  /** Whether the gateway signed the request. */
  readonly isSigned: boolean;
}

/** How the voter answers: with a vote, or with whatever a function writes to the response. */
export type VoterBehavior =
  | 'approve'
  | 'deny'
  | 'abstain'
  | ((request: ReceivedVoteRequest, response: ServerResponse) => void);

/** A voter on loopback that records its requests. */
export class TestVoter {
  readonly secret: string;
  readonly requests: ReceivedVoteRequest[] = [];
  behavior: VoterBehavior = 'approve';
  readonly #server: Server;

  private constructor(secret: string) {
    this.secret = secret;
    this.#server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const text = Buffer.concat(chunks).toString();
        const isSigned = isSignatureValid(secret, text, request.headers['oncegate-signature']);
        const received = { headers: request.headers, text, body: JSON.parse(text), isSigned };
        this.requests.push(received);
        const { behavior } = this;
        if (typeof behavior === 'function') behavior(received, response);
        else this.sendVote(response, { vote: behavior, digest: received.body.digest, reason: `I say ${behavior}` });
      });
    });
  }

  static async start(secret: string): Promise<TestVoter> {
    const voter = new TestVoter(secret);
    await new Promise<void>((done) => voter.#server.listen(0, '127.0.0.1', done));
    return voter;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/vote`;
  }

  /** Sends a vote, signed with this voter's secret unless another is given. */
  sendVote(response: ServerResponse, answer: unknown, secret = this.secret): void {
    const body = JSON.stringify(answer);
    response.writeHead(200, { 'content-type': 'application/json', 'oncegate-signature': signBody(secret, body) });
    response.end(body);
  }

  /** The requests about one call. */
  findRequestsAbout(id: string): ReceivedVoteRequest[] {
    return this.requests.filter(({ body }) => body.args?.id === id);
  }

  stop(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}
