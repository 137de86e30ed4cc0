import { createHash, randomBytes } from 'node:crypto';
import { access, readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { z } from 'zod';
import { type AuditConfig, auditSchema, NO_AUDIT_CONFIG, parseAuditConfig } from './audit-config.ts';
import { parseDurationMs } from './domain/duration.ts';
import type { Rate } from './domain/policy.ts';
import { Diagnostics, formatDiagnostic, type SourceFile } from './policy/faults.ts';
import { loadPolicies } from './policy/load-policies.ts';
import { parseRate, rateSchema } from './policy/policy-file-schema.ts';
import { parsePolicyFile } from './policy/read-policy-files.ts';
import { resolveSecrets } from './policy/resolve-secrets.ts';
import { reportZodIssues } from './policy/zod-issues.ts';
import { type DemoKeys, readDemoKeys } from './secret-files.ts';
import { readTelemetryConfig, type TelemetryConfig, telemetrySchema } from './telemetry/telemetry-config.ts';

/** The configuration of the process. Only this module reads the environment. */
export interface Config {
  readonly listen: { readonly host: string; readonly port: number };
  /** Without a url the gateway starts its embedded PostgreSQL. */
  readonly database: { readonly url?: string; readonly pool: number };
  readonly policiesDir: string;
  readonly dataDir: string;
  readonly retention: { readonly payloadsMs: number; readonly keysMs: number | null };
  readonly limits: {
    readonly bodyBytes: number;
    readonly inflight: number;
    readonly pendingApprovals: number;
    /** Rates of HTTP requests that this process accepts. */
    readonly perAgent: Rate;
    readonly perAddress: Rate;
  };
  /** Receives notices about approvals. */
  readonly webhook: Webhook | undefined;
  readonly telemetry: TelemetryConfig;
  readonly audit: AuditConfig;
  readonly demo: boolean;
  /** How many processes share the port. */
  readonly workers: number;
  readonly logLevel: string;
  /** 32 bytes that encrypt the payloads of redacting tools; undefined: the key in the data directory. */
  readonly encryptionKey: Buffer | undefined;
  /** `point` or `point:n`: the kill point at which the process dies, for the fault tests. */
  readonly dieAt: string | undefined;
  readonly env: NodeJS.ProcessEnv;
}

export interface Webhook {
  readonly url: string;
  /** Signs the notices. Never stored, logged or shown. */
  readonly secret: string;
  readonly allowPrivate: boolean;
}

export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  readonly faults: readonly string[];

  constructor(faults: readonly string[]) {
    super(faults.join('\n'));
    this.faults = faults;
  }
}

const durationSchema = z.string().regex(/^\d+(ms|s|m|h|d)$/, 'is not a duration such as 500ms, 10s, 5m, 24h or 30d');

const configFileSchema = z.strictObject({
  listen: z
    .strictObject({ host: z.string().min(1).optional(), port: z.int().min(0).max(65_535).optional() })
    .optional(),
  database: z.strictObject({ url: z.string().min(1).optional(), pool: z.int().min(2).max(500).optional() }).optional(),
  policies: z.string().min(1).optional(),
  dataDir: z.string().min(1).optional(),
  retention: z
    .strictObject({
      payloads: durationSchema.optional(),
      keys: z.union([z.literal('forever'), durationSchema]).optional(),
    })
    .optional(),
  limits: z
    .strictObject({
      body: z.int().min(1).max(67_108_864).optional(),
      inflight: z.int().min(1).max(100_000).optional(),
      pendingApprovals: z.int().min(0).max(100_000).optional(),
      perAgent: rateSchema.optional(),
      perAddress: rateSchema.optional(),
    })
    .optional(),
  approvals: z
    .strictObject({
      webhook: z
        .strictObject({ url: z.string().min(1), secret: z.string().min(1), allowPrivate: z.boolean().optional() })
        .optional(),
    })
    .optional(),
  telemetry: telemetrySchema.optional(),
  audit: auditSchema.optional(),
});

type ConfigFile = z.infer<typeof configFileSchema>;

const MIN_SECRET_LENGTH = 16;
const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'];

export async function readConfig(env: NodeJS.ProcessEnv, cwd: string): Promise<Config> {
  const faults: string[] = [];
  const { file, webhook, audit } = await readConfigFile(env, cwd, faults);
  const port = readPort(env, file, faults);
  const host = env['HOST'] || file.listen?.host || '127.0.0.1';
  const url = env['DATABASE_URL'] || file.database?.url;
  if (url !== undefined && !/^postgres(ql)?:\/\//.test(url)) {
    faults.push('DATABASE_URL: is not a PostgreSQL address such as postgres://user:password@host:5432/oncegate');
  }
  const logLevel = env['LOG_LEVEL'] || 'info';
  if (!LOG_LEVELS.includes(logLevel)) faults.push(`LOG_LEVEL: "${logLevel}" is not one of ${LOG_LEVELS.join(', ')}`);
  const encryptionKey = readEncryptionKey(env, faults);
  if (!/^([1-9]\d?)?$/.test(env['ONCEGATE_WORKERS'] ?? ''))
    faults.push(`ONCEGATE_WORKERS: "${env['ONCEGATE_WORKERS']}" is not a number of processes from 1 to 99`);
  const demo = env['ONCEGATE_DEMO'] !== '0';
  const policies = env['ONCEGATE_POLICIES'] || file.policies || 'policies';
  if (faults.length > 0) {
    const filledIn = { ...env, ...buildDemoEnv({ host, port }, undefined, env) };
    throw new ConfigError([...faults, ...(await findPolicyFaults(resolve(cwd, policies), filledIn))]);
  }

  const dataDir = resolve(cwd, env['ONCEGATE_DATA_DIR'] || file.dataDir || '.oncegate');
  const keys = file.retention?.keys;
  return {
    listen: { host, port },
    database: { pool: file.database?.pool ?? 20, ...(url === undefined ? {} : { url }) },
    policiesDir: resolve(cwd, policies),
    dataDir,
    retention: {
      payloadsMs: parseDurationMs(file.retention?.payloads ?? '30d'),
      keysMs: keys === undefined || keys === 'forever' ? null : parseDurationMs(keys),
    },
    limits: {
      bodyBytes: file.limits?.body ?? 1_048_576,
      inflight: file.limits?.inflight ?? 2_000,
      pendingApprovals: file.limits?.pendingApprovals ?? 100,
      perAgent: parseRate(file.limits?.perAgent ?? '20000/s'),
      perAddress: parseRate(file.limits?.perAddress ?? '100/s'),
    },
    webhook,
    telemetry: readTelemetryConfig(env, file.telemetry),
    audit,
    demo,
    workers: readWorkerCount(env, { demo, embedded: url === undefined }),
    logLevel,
    encryptionKey,
    dieAt: env['ONCEGATE_DIE_AT'] || undefined,
    env: { ...env, ...buildDemoEnv({ host, port }, demo ? await readDemoKeys(dataDir) : undefined, env) },
  };
}

/** Policy faults, to print with the configuration faults. A missing directory is none: the faulty file may name it. */
async function findPolicyFaults(dir: string, env: NodeJS.ProcessEnv): Promise<string[]> {
  const exists = await access(dir).then(
    () => true,
    () => false,
  );
  const loaded = exists ? await loadPolicies({ dir, env }) : undefined;
  return loaded?.ok === false ? loaded.faults.map(formatDiagnostic) : [];
}

/**
 * One process per core, less one for an embedded PostgreSQL. The demo runs in one process, which is easier to follow.
 */
function readWorkerCount(env: NodeJS.ProcessEnv, { demo, embedded }: { demo: boolean; embedded: boolean }): number {
  const text = env['ONCEGATE_WORKERS'];
  if (text !== undefined && text !== '') return Number(text);
  if (demo) return 1;
  return Math.max(1, availableParallelism() - (embedded ? 1 : 0));
}

/** The variables of the demo policies. Without keys the demo agent gets a random key that nobody knows. */
export function buildDemoEnv(
  listen: Config['listen'],
  keys: DemoKeys | undefined,
  env: NodeJS.ProcessEnv,
): NodeJS.ProcessEnv {
  const host = listen.host === '0.0.0.0' || listen.host === '::' ? '127.0.0.1' : listen.host;
  const hashKey = (key: string | undefined) =>
    createHash('sha256')
      .update(key ?? randomBytes(32))
      .digest('hex');
  return {
    ONCEGATE_DEMO_URL:
      env['ONCEGATE_DEMO_URL'] ?? `http://${host.includes(':') ? `[${host}]` : host}:${listen.port}/demo`,
    ONCEGATE_DEMO_TOKEN: keys?.token ?? 'no-demo-here',
    ONCEGATE_DEMO_AGENT_SHA256: hashKey(keys?.agentKey),
    ONCEGATE_DEMO_ADMIN_SHA256: hashKey(keys?.adminKey),
  };
}

interface LoadedConfigFile {
  readonly file: ConfigFile;
  readonly webhook: Webhook | undefined;
  readonly audit: AuditConfig;
}

async function readConfigFile(env: NodeJS.ProcessEnv, cwd: string, faults: string[]): Promise<LoadedConfigFile> {
  const empty: LoadedConfigFile = { file: {}, webhook: undefined, audit: NO_AUDIT_CONFIG };
  const configured = env['ONCEGATE_CONFIG'];
  const file = configured || 'oncegate.yaml';
  let bytes: Buffer;
  try {
    bytes = await readFile(resolve(cwd, file));
  } catch (error) {
    if (configured)
      faults.push(`${file}:1:1: cannot be read: ${(error as NodeJS.ErrnoException).code}; correct ONCEGATE_CONFIG`);
    return empty;
  }
  const parsed = parsePolicyFile({ name: file, file, bytes });
  if (parsed.source === undefined || parsed.faults.length > 0) {
    faults.push(...parsed.faults.map(formatDiagnostic));
    return empty;
  }
  const value = parsed.source.value ?? {};
  const checked = configFileSchema.safeParse(value);
  const report = new Diagnostics();
  if (checked.success) {
    const webhook = parseWebhook(checked.data, env, parsed.source, report);
    const audit = await parseAuditConfig(checked.data.audit, cwd, parsed.source, report);
    faults.push(...report.faults.map(formatDiagnostic));
    return { file: checked.data, webhook, audit };
  }
  reportZodIssues(report, { source: parsed.source, path: [] }, value, configFileSchema, checked.error.issues);
  faults.push(...report.faults.map(formatDiagnostic));
  const { policies } = value as { policies?: unknown };
  return typeof policies === 'string' ? { ...empty, file: { policies } } : empty;
}

/** The messages never contain a secret that the environment or a file filled in. */
function parseWebhook(
  { approvals }: ConfigFile,
  env: NodeJS.ProcessEnv,
  source: SourceFile,
  report: Diagnostics,
): Webhook | undefined {
  const webhook = approvals?.webhook;
  if (webhook === undefined) return undefined;
  const at = (key: string) => ({ source, path: ['approvals', 'webhook', key] });
  const resolve = (key: 'url' | 'secret') =>
    resolveSecrets(webhook[key], env, { file: key === 'secret' }, (message, offset) =>
      report.addError(at(key), message, offset),
    ).text;
  const [url, secret, allowPrivate] = [resolve('url'), resolve('secret'), webhook.allowPrivate ?? false];
  if (report.faults.length > 0) return undefined;
  const protocol = URL.canParse(url) ? new URL(url).protocol : '';
  if (protocol !== 'https:' && !(protocol === 'http:' && allowPrivate))
    report.addError(at('url'), 'is not a URL with https:// (or http:// to a private address, with allowPrivate: true)');
  if (secret.length < MIN_SECRET_LENGTH)
    report.addError(
      at('secret'),
      `must be at least ${MIN_SECRET_LENGTH} characters long, so that nobody can guess it and forge notices`,
    );
  return { url, secret, allowPrivate };
}

function readPort(env: NodeJS.ProcessEnv, file: ConfigFile, faults: string[]): number {
  const text = env['PORT'];
  if (text === undefined || text === '') return file.listen?.port ?? 8080;
  const port = Number(text);
  if (/^\d+$/.test(text) && port <= 65_535) return port;
  faults.push(`PORT: "${text}" is not a port; use a number from 0 to 65535`);
  return 0;
}

function readEncryptionKey(env: NodeJS.ProcessEnv, faults: string[]): Buffer | undefined {
  const text = env['ONCEGATE_ENCRYPTION_KEY'];
  if (text === undefined || text === '') return undefined;
  if (!/^[0-9a-fA-F]{64}$/.test(text)) faults.push('ONCEGATE_ENCRYPTION_KEY: is not 64 hex digits (32 bytes)');
  return Buffer.from(text, 'hex');
}
