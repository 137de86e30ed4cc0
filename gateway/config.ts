import { createHash, randomBytes } from 'node:crypto';
import { access, readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { z } from 'zod';
import { type AuditConfig, auditOf, auditSchema, NO_AUDIT_CONFIG } from './audit-config.ts';
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

/** The process: where it listens, where its ledger and policies are. The only reader of the environment. */
export interface Config {
  readonly listen: { readonly host: string; readonly port: number };
  /** Without a url the embedded PostgreSQL is started. */
  readonly database: { readonly url?: string; readonly pool: number };
  readonly policiesDir: string;
  readonly dataDir: string;
  readonly retention: { readonly payloadsMs: number; readonly keysMs: number | null };
  readonly limits: {
    readonly bodyBytes: number;
    readonly inflight: number;
    readonly pendingApprovals: number;
    /** At this process's front door, against floods. */
    readonly perAgent: Rate;
    readonly perAddress: Rate;
  };
  /** Where people are told that a call waits for them. */
  readonly webhook: Webhook | undefined;
  readonly telemetry: TelemetryConfig;
  readonly audit: AuditConfig;
  readonly demo: boolean;
  /** How many processes share the port. */
  readonly workers: number;
  readonly logLevel: string;
  /** 32 bytes that encrypt what redacting tools store; absent: kept in the data directory. */
  readonly encryptionKey: Buffer | undefined;
  /** `point` or `point:n`: for the fault tests, die at a named point of a call's way. */
  readonly dieAt: string | undefined;
  readonly env: NodeJS.ProcessEnv;
}

export interface Webhook {
  readonly url: string;
  /** Signs what is sent. Never stored, logged or shown. */
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

const duration = z.string().regex(/^\d+(ms|s|m|h|d)$/, 'is not a duration such as 500ms, 10s, 5m, 24h or 30d');

const fileSchema = z.strictObject({
  listen: z
    .strictObject({ host: z.string().min(1).optional(), port: z.int().min(0).max(65_535).optional() })
    .optional(),
  database: z.strictObject({ url: z.string().min(1).optional(), pool: z.int().min(2).max(500).optional() }).optional(),
  policies: z.string().min(1).optional(),
  dataDir: z.string().min(1).optional(),
  retention: z
    .strictObject({ payloads: duration.optional(), keys: z.union([z.literal('forever'), duration]).optional() })
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

type ConfigFile = z.infer<typeof fileSchema>;

const LEAST_SECRET = 16;
const LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'];

export async function readConfig(env: NodeJS.ProcessEnv, cwd: string): Promise<Config> {
  const faults: string[] = [];
  const { file, webhook, audit } = await readConfigFile(env, cwd, faults);
  const port = portOf(env, file, faults);
  const host = env['HOST'] || file.listen?.host || '127.0.0.1';
  const url = env['DATABASE_URL'] || file.database?.url;
  if (url !== undefined && !/^postgres(ql)?:\/\//.test(url)) {
    faults.push('DATABASE_URL: is not a PostgreSQL address such as postgres://user:password@host:5432/oncegate');
  }
  const logLevel = env['LOG_LEVEL'] || 'info';
  if (!LEVELS.includes(logLevel)) faults.push(`LOG_LEVEL: "${logLevel}" is not one of ${LEVELS.join(', ')}`);
  const encryptionKey = encryptionKeyOf(env, faults);
  if (!/^([1-9]\d?)?$/.test(env['ONCEGATE_WORKERS'] ?? ''))
    faults.push(`ONCEGATE_WORKERS: "${env['ONCEGATE_WORKERS']}" is not a number of processes from 1 to 99`);
  const demo = env['ONCEGATE_DEMO'] !== '0';
  const policies = env['ONCEGATE_POLICIES'] || file.policies || 'policies';
  if (faults.length > 0) {
    const filledIn = { ...env, ...demoEnv({ host, port }, undefined, env) };
    throw new ConfigError([...faults, ...(await faultsBelow(resolve(cwd, policies), filledIn))]);
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
    workers: workersOf(env, { demo, embedded: url === undefined }),
    logLevel,
    encryptionKey,
    dieAt: env['ONCEGATE_DIE_AT'] || undefined,
    env: { ...env, ...demoEnv({ host, port }, demo ? await readDemoKeys(dataDir) : undefined, env) },
  };
}

/** What is wrong with the policies too, told with the rest. That they are elsewhere may be what the file was to say. */
async function faultsBelow(dir: string, env: NodeJS.ProcessEnv): Promise<string[]> {
  const isThere = await access(dir).then(
    () => true,
    () => false,
  );
  const loaded = isThere ? await loadPolicies({ dir, env }) : undefined;
  return loaded?.ok === false ? loaded.faults.map(formatDiagnostic) : [];
}

/**
 * One process for each core; where PostgreSQL runs beside us it gets one of them. The demo is for looking at: one process
 * is easier to follow.
 */
function workersOf(env: NodeJS.ProcessEnv, { demo, embedded }: { demo: boolean; embedded: boolean }): number {
  const text = env['ONCEGATE_WORKERS'];
  if (text !== undefined && text !== '') return Number(text);
  if (demo) return 1;
  return Math.max(1, availableParallelism() - (embedded ? 1 : 0));
}

/** What `${env.…}` of the demo policies sees. Without keys the demo agent exists, and nobody can be it. */
export function demoEnv(
  listen: Config['listen'],
  keys: DemoKeys | undefined,
  env: NodeJS.ProcessEnv,
): NodeJS.ProcessEnv {
  const host = listen.host === '0.0.0.0' || listen.host === '::' ? '127.0.0.1' : listen.host;
  const hashed = (key: string | undefined) =>
    createHash('sha256')
      .update(key ?? randomBytes(32))
      .digest('hex');
  return {
    ONCEGATE_DEMO_URL:
      env['ONCEGATE_DEMO_URL'] ?? `http://${host.includes(':') ? `[${host}]` : host}:${listen.port}/demo`,
    ONCEGATE_DEMO_TOKEN: keys?.token ?? 'no-demo-here',
    ONCEGATE_DEMO_AGENT_SHA256: hashed(keys?.agentKey),
    ONCEGATE_DEMO_ADMIN_SHA256: hashed(keys?.adminKey),
  };
}

interface Read {
  readonly file: ConfigFile;
  readonly webhook: Webhook | undefined;
  readonly audit: AuditConfig;
}

async function readConfigFile(env: NodeJS.ProcessEnv, cwd: string, faults: string[]): Promise<Read> {
  const nothing: Read = { file: {}, webhook: undefined, audit: NO_AUDIT_CONFIG };
  const named = env['ONCEGATE_CONFIG'];
  const file = named || 'oncegate.yaml';
  let bytes: Buffer;
  try {
    bytes = await readFile(resolve(cwd, file));
  } catch (error) {
    if (named)
      faults.push(`${file}:1:1: cannot be read: ${(error as NodeJS.ErrnoException).code}; correct ONCEGATE_CONFIG`);
    return nothing;
  }
  const parsed = parsePolicyFile({ name: file, file, bytes });
  if ('faults' in parsed) {
    faults.push(...parsed.faults.map(formatDiagnostic));
    return nothing;
  }
  const value = parsed.source.value ?? {};
  const checked = fileSchema.safeParse(value);
  const report = new Diagnostics();
  if (checked.success) {
    const webhook = webhookOf(checked.data, env, parsed.source, report);
    const audit = await auditOf(checked.data.audit, cwd, parsed.source, report);
    faults.push(...report.faults.map(formatDiagnostic));
    return { file: checked.data, webhook, audit };
  }
  reportZodIssues(report, { source: parsed.source, path: [] }, value, fileSchema, checked.error.issues);
  faults.push(...report.faults.map(formatDiagnostic));
  const { policies } = value as { policies?: unknown };
  return typeof policies === 'string' ? { ...nothing, file: { policies } } : nothing;
}

/** Messages show no part of what the environment or a file filled in. */
function webhookOf(
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
  if (secret.length < LEAST_SECRET)
    report.addError(at('secret'), `is shorter than ${LEAST_SECRET} characters: whoever guesses it can forge notices`);
  return { url, secret, allowPrivate };
}

function portOf(env: NodeJS.ProcessEnv, file: ConfigFile, faults: string[]): number {
  const text = env['PORT'];
  if (text === undefined || text === '') return file.listen?.port ?? 8080;
  const port = Number(text);
  if (/^\d+$/.test(text) && port <= 65_535) return port;
  faults.push(`PORT: "${text}" is not a port; use a number from 0 to 65535`);
  return 0;
}

function encryptionKeyOf(env: NodeJS.ProcessEnv, faults: string[]): Buffer | undefined {
  const text = env['ONCEGATE_ENCRYPTION_KEY'];
  if (text === undefined || text === '') return undefined;
  if (!/^[0-9a-fA-F]{64}$/.test(text)) faults.push('ONCEGATE_ENCRYPTION_KEY: is not 64 hex digits (32 bytes)');
  return Buffer.from(text, 'hex');
}
