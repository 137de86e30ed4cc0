import { spawn } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { findFreePort } from '../test/support/gateway.ts';
import { killOnExit, type ServerProcess, startServerProcess, toServerProcess } from './processes.ts';

const requireFromBench = createRequire(import.meta.url);

export const PEERS_NOT_INSTALLED =
  'The peers are not installed. They have their own package.json in bench/. Install them with:\n\n' +
  '  npm ci --prefix bench\n';

export function arePeersInstalled(): boolean {
  try {
    findRestateBinary();
    requireFromBench.resolve('@restatedev/restate-sdk');
    requireFromBench.resolve('@dbos-inc/dbos-sdk');
    return true;
  } catch {
    return false;
  }
}

export function readPeerVersions(): Readonly<Record<string, string>> {
  const { dependencies } = requireFromBench('./package.json') as { dependencies: Record<string, string> };
  return dependencies;
}

export const startDbos = (upstream: string, databaseUrl: string, env: Readonly<Record<string, string>> = {}) =>
  startServerProcess('peers/dbos.mjs', {
    UPSTREAM: upstream,
    DATABASE_URL: databaseUrl,
    NODE_NO_WARNINGS: '1',
    ...env,
  });

export const startRestateService = (upstream: string, env: Readonly<Record<string, string>> = {}) =>
  startServerProcess('peers/restate.mjs', { UPSTREAM: upstream, RESTATE_LOGGING: 'ERROR', ...env });

/** Starts a Restate server that calls the service. Without `partitions` it has its default. `url` is its ingress. */
export async function startRestate(home: string, service: string, partitions?: number): Promise<ServerProcess> {
  await mkdir(home, { recursive: true });
  const [node, ingress, admin] = [await findFreePort(), await findFreePort(), await findFreePort()];
  const child = killOnExit(
    spawn(findRestateBinary(), ['--no-logo', '--listen-mode', 'tcp', '--base-dir', join(home, 'data')], {
      cwd: home,
      env: {
        PATH: process.env['PATH'],
        RESTATE_NODE_NAME: 'bench',
        RESTATE_BIND_IP: '127.0.0.1',
        RESTATE_ADVERTISED_HOST: '127.0.0.1',
        RESTATE_BIND_PORT: String(node),
        RESTATE_INGRESS__BIND_PORT: String(ingress),
        RESTATE_ADMIN__BIND_PORT: String(admin),
        RESTATE_DISABLE_TELEMETRY: 'true',
        RESTATE_LOG_FILTER: 'off,restate=error',
        ...(partitions === undefined ? {} : { RESTATE_DEFAULT_NUM_PARTITIONS: String(partitions) }),
      },
      stdio: ['ignore', 'ignore', 'inherit'],
    }),
  );
  await registerService(`http://127.0.0.1:${admin}`, service, () => child.exitCode !== null);
  return toServerProcess(child, `http://127.0.0.1:${ingress}`);
}

/** Registers the service, retrying until the server is up. */
async function registerService(admin: string, service: string, hasExited: () => boolean): Promise<void> {
  for (const until = performance.now() + 60_000; ; await sleep(100)) {
    if (hasExited()) throw new Error('The Restate server did not start.');
    const answer = await fetch(`${admin}/deployments`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ uri: service }),
    }).catch(() => undefined);
    const text = await answer?.text();
    if (answer?.ok) return;
    if (performance.now() > until) throw new Error(`Restate did not accept the service: ${text ?? 'no answer'}`);
  }
}

function findRestateBinary(): string {
  return requireFromBench.resolve(`@restatedev/restate-server-${process.platform}-${process.arch}/bin/restate-server`);
}
