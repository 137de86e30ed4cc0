import { z } from 'zod';

/** Where traces go. The standard `OTEL_*` variables win; credentials of a collector belong in OTEL_EXPORTER_OTLP_HEADERS. */
export interface TelemetryConfig {
  readonly enabled: boolean;
  /** The traces' own address, `…/v1/traces`; absent: as OTEL_EXPORTER_OTLP_ENDPOINT says. */
  readonly endpoint: string | undefined;
  /** The share of traces that are kept when nobody before us decided. Absent: as OTEL_TRACES_SAMPLER says, else all. */
  readonly sampling: number | undefined;
  readonly service: string;
}

export const telemetrySchema = z.strictObject({
  endpoint: z.url({ protocol: /^https?$/, error: 'is not a URL such as http://collector:4318' }).optional(),
  sampling: z.number().min(0).max(1).optional(),
  service: z.string().min(1).max(128).optional(),
});

export function telemetryOf(
  env: NodeJS.ProcessEnv,
  file: z.infer<typeof telemetrySchema> | undefined,
): TelemetryConfig {
  const named = env['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] || env['OTEL_EXPORTER_OTLP_ENDPOINT'];
  const isOff = env['OTEL_SDK_DISABLED'] === 'true' || env['OTEL_TRACES_EXPORTER'] === 'none';
  return {
    enabled: !isOff && (Boolean(named) || file?.endpoint !== undefined),
    endpoint: named || file?.endpoint === undefined ? undefined : `${file.endpoint.replace(/\/$/, '')}/v1/traces`,
    sampling: env['OTEL_TRACES_SAMPLER'] ? undefined : file?.sampling,
    service: env['OTEL_SERVICE_NAME'] || file?.service || 'oncegate',
  };
}
