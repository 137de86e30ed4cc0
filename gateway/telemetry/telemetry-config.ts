import { z } from 'zod';

/** Where traces go. The standard `OTEL_*` variables win. Credentials of a collector belong in OTEL_EXPORTER_OTLP_HEADERS. */
export interface TelemetryConfig {
  readonly enabled: boolean;
  /** The URL for traces, `…/v1/traces`. Undefined: OTEL_EXPORTER_OTLP_ENDPOINT applies. */
  readonly endpoint: string | undefined;
  /** The share of sampled traces if the caller did not decide. Undefined: OTEL_TRACES_SAMPLER applies, else all. */
  readonly sampling: number | undefined;
  readonly service: string;
}

export const telemetrySchema = z.strictObject({
  endpoint: z.url({ protocol: /^https?$/, error: 'is not a URL such as http://collector:4318' }).optional(),
  sampling: z.number().min(0).max(1).optional(),
  service: z.string().min(1).max(128).optional(),
});

export function readTelemetryConfig(
  env: NodeJS.ProcessEnv,
  file: z.infer<typeof telemetrySchema> | undefined,
): TelemetryConfig {
  const envEndpoint = env['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] || env['OTEL_EXPORTER_OTLP_ENDPOINT'];
  const isOff = env['OTEL_SDK_DISABLED'] === 'true' || env['OTEL_TRACES_EXPORTER'] === 'none';
  return {
    enabled: !isOff && (Boolean(envEndpoint) || file?.endpoint !== undefined),
    endpoint: envEndpoint || file?.endpoint === undefined ? undefined : `${file.endpoint.replace(/\/$/, '')}/v1/traces`,
    sampling: env['OTEL_TRACES_SAMPLER'] ? undefined : file?.sampling,
    service: env['OTEL_SERVICE_NAME'] || file?.service || 'oncegate',
  };
}
