import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface CollectedSpan {
  readonly name: string;
  readonly kind: number;
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string | undefined;
  readonly links: readonly { readonly traceId: string; readonly spanId: string }[];
  readonly attributes: Readonly<Record<string, unknown>>;
  /** Milliseconds. */
  readonly start: number;
  readonly end: number;
}

/** An OpenTelemetry collector that stores every received span (OTLP over HTTP, as JSON). */
export class OtlpCollector {
  readonly spans: CollectedSpan[] = [];
  readonly #server: Server;
  #onSpansStored: () => void = () => {};

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(): Promise<OtlpCollector> {
    const server = createServer();
    const collector = new OtlpCollector(server);
    server.on('request', async (request, response) => {
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      collector.#storeSpans(JSON.parse(Buffer.concat(chunks).toString()));
      response.setHeader('content-type', 'application/json').end('{}');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return collector;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Waits until the spans satisfy a condition. */
  async waitForSpans(condition: (spans: readonly CollectedSpan[]) => boolean): Promise<readonly CollectedSpan[]> {
    while (!condition(this.spans)) await new Promise<void>((resolve) => (this.#onSpansStored = resolve));
    return this.spans;
  }

  async stop(): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, 'close');
  }

  // biome-ignore lint/suspicious/noExplicitAny: the shape of OTLP
  #storeSpans({ resourceSpans }: any): void {
    for (const { scopeSpans } of resourceSpans) {
      for (const { spans } of scopeSpans) {
        for (const span of spans) {
          this.spans.push({
            ...span,
            parentSpanId: span.parentSpanId || undefined,
            links: span.links ?? [],
            start: Number(span.startTimeUnixNano) / 1e6,
            end: Number(span.endTimeUnixNano) / 1e6,
            attributes: Object.fromEntries(
              // biome-ignore lint/suspicious/noExplicitAny: the shape of OTLP
              span.attributes.map(({ key, value }: any) => [key, Object.values(value)[0]]),
            ),
          });
        }
      }
    }
    this.#onSpansStored();
  }
}
