import {
  type Attributes,
  type Context,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api';
import type { SpanName, SpanResult, SpanSubject, TraceContext } from '../domain/telemetry.ts';
import type { TelemetryConfig } from './telemetry-config.ts';

/** One span, and the context that those below it continue. */
export interface Traced {
  readonly trace: TraceContext;
  end(result: SpanResult): void;
}

/** Where spans go. */
export interface Tracing {
  begin(name: SpanName, about: SpanSubject, parent: TraceContext): Traced;
  stop(): Promise<void>;
}

/**
 * OpenTelemetry over OTLP, as the standard `OTEL_*` variables and `telemetry` in oncegate.yaml say. Undefined when nobody asked
 * for it: then not even its code is loaded.
 */
export async function startTracing(config: TelemetryConfig, version: string): Promise<Tracing | undefined> {
  if (!config.enabled) return undefined;
  const [
    { OTLPTraceExporter },
    { BatchSpanProcessor, NodeTracerProvider, ParentBasedSampler, TraceIdRatioBasedSampler },
    resources,
  ] = await Promise.all([
    import('@opentelemetry/exporter-trace-otlp-http'),
    import('@opentelemetry/sdk-trace-node'),
    import('@opentelemetry/resources'),
  ]);
  const { endpoint, sampling, service } = config;
  const exporter = new OTLPTraceExporter(endpoint === undefined ? {} : { url: endpoint });
  const provider = new NodeTracerProvider({
    resource: resources
      .defaultResource()
      .merge(resources.resourceFromAttributes({ 'service.name': service, 'service.version': version })),
    spanProcessors: [new BatchSpanProcessor(exporter)],
    ...(sampling === undefined
      ? {}
      : { sampler: new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(sampling) }) }),
  });
  const tracer = provider.getTracer('oncegate', version);
  return {
    begin: (name, about, parent) => begin(tracer, name, about, parent),
    stop: () => provider.shutdown(),
  };
}

const KINDS: Readonly<Partial<Record<SpanName, SpanKind>>> = { call: SpanKind.SERVER, send: SpanKind.CLIENT };

function begin(tracer: Tracer, name: SpanName, about: SpanSubject, parent: TraceContext): Traced {
  const above = contextOf(parent);
  const span = tracer.startSpan(
    isWhole(name) ? `execute_tool ${about.tool}` : `oncegate.${name}`,
    {
      kind: KINDS[name] ?? SpanKind.INTERNAL,
      attributes: attributesOf(name, about),
      // A call that is carried on without its caller continues what another process, or another call, began.
      links: name === 'recover' || name === 'undo' ? linksOf(above) : [],
    },
    above,
  );
  return {
    trace: Object.assign({}, parent, { traceparent: headerOf(span) }),
    end: (result) => {
      for (const [key, value] of Object.entries(result))
        span.setAttribute(key === 'txn' ? 'gen_ai.tool.call.id' : `oncegate.${key}`, value);
      if (typeof result['code'] === 'string') {
        span.setAttribute('error.type', result['code']);
        span.setStatus({ code: SpanStatusCode.ERROR });
      }
      span.end();
    },
  };
}

function isWhole(name: SpanName): boolean {
  return name === 'call' || name === 'recover' || name === 'undo';
}

function attributesOf(name: SpanName, { tool, agent, txn }: SpanSubject): Attributes {
  const attributes: Attributes = { 'gen_ai.tool.name': tool, 'gen_ai.agent.name': agent, 'oncegate.station': name };
  if (isWhole(name)) {
    attributes['gen_ai.operation.name'] = 'execute_tool';
    attributes['gen_ai.tool.type'] = 'function';
  }
  if (txn !== undefined) attributes['gen_ai.tool.call.id'] = txn;
  return attributes;
}

function linksOf(above: Context) {
  const context = trace.getSpanContext(above);
  return context === undefined ? [] : [{ context }];
}

function contextOf({ traceparent }: TraceContext): Context {
  const [, traceId, spanId, flags] = traceparent?.split('-') ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return ROOT_CONTEXT;
  const context = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
  return trace.setSpanContext(ROOT_CONTEXT, context);
}

function headerOf(span: Span): string {
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;
}
