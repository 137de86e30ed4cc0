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

/** A span of OpenTelemetry, and the context that its children continue. */
export interface TraceSpan {
  readonly trace: TraceContext;
  end(result: SpanResult): void;
}

/** Creates and exports the spans. */
export interface Tracing {
  begin(name: SpanName, about: SpanSubject, parent: TraceContext): TraceSpan;
  stop(): Promise<void>;
}

/**
 * Starts OpenTelemetry over OTLP, by the standard `OTEL_*` variables and `telemetry` in oncegate.yaml. If tracing is off, it
 * returns undefined and does not even load the code.
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
    begin: (name, about, parent) => beginSpan(tracer, name, about, parent),
    stop: () => provider.shutdown(),
  };
}

const SPAN_KINDS: Readonly<Partial<Record<SpanName, SpanKind>>> = { call: SpanKind.SERVER, send: SpanKind.CLIENT };

function beginSpan(tracer: Tracer, name: SpanName, about: SpanSubject, parent: TraceContext): TraceSpan {
  const parentContext = toContext(parent);
  const span = tracer.startSpan(
    isWholeCall(name) ? `execute_tool ${about.tool}` : `oncegate.${name}`,
    {
      kind: SPAN_KINDS[name] ?? SpanKind.INTERNAL,
      attributes: buildAttributes(name, about),
      // A recovered call or a compensation continues the span of another process or call.
      links: name === 'recover' || name === 'undo' ? buildLinks(parentContext) : [],
    },
    parentContext,
  );
  return {
    trace: Object.assign({}, parent, { traceparent: formatTraceparent(span) }),
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

function isWholeCall(name: SpanName): boolean {
  return name === 'call' || name === 'recover' || name === 'undo';
}

function buildAttributes(name: SpanName, { tool, agent, txn }: SpanSubject): Attributes {
  const attributes: Attributes = { 'gen_ai.tool.name': tool, 'gen_ai.agent.name': agent, 'oncegate.stage': name };
  if (isWholeCall(name)) {
    attributes['gen_ai.operation.name'] = 'execute_tool';
    attributes['gen_ai.tool.type'] = 'function';
  }
  if (txn !== undefined) attributes['gen_ai.tool.call.id'] = txn;
  return attributes;
}

function buildLinks(parentContext: Context) {
  const context = trace.getSpanContext(parentContext);
  return context === undefined ? [] : [{ context }];
}

function toContext({ traceparent }: TraceContext): Context {
  const [, traceId, spanId, flags] = traceparent?.split('-') ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return ROOT_CONTEXT;
  const context = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
  return trace.setSpanContext(ROOT_CONTEXT, context);
}

function formatTraceparent(span: Span): string {
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;
}
