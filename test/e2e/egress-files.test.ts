import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { beforeAll, describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { isPrivateAddress } from '../../adapters/http/private-address.ts';
import { findFreePort } from '../support/gateway.ts';

interface Service {
  readonly networks?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly [key: string]: unknown;
}

interface Compose {
  readonly services: Readonly<Record<string, Service>>;
  readonly networks: Readonly<Record<string, { readonly internal?: boolean }>>;
}

describe('the compose file with agents', () => {
  let compose: Compose;
  beforeAll(async () => {
    compose = parse(await readFile('deploy/agents.compose.yaml', 'utf8')) as Compose;
  });
  const service = (name: string) => compose.services[name] ?? {};
  const networks = (name: string) => service(name).networks ?? ['default'];
  const isExternal = (network: string) => compose.networks[network]?.internal !== true;

  it('gives the agent only internal networks, shared only with the gateway', () => {
    expect(networks('agent').filter(isExternal)).toEqual([]);
    const neighbours = Object.keys(compose.services).filter((name) =>
      networks(name).some((network) => networks('agent').includes(network)),
    );
    expect(neighbours.sort()).toEqual(['agent', 'gateway']);
  });

  it('gives only the gateway an external network, and keeps PostgreSQL internal', () => {
    const external = Object.keys(compose.services).filter((name) => networks(name).some(isExternal));
    expect(external).toEqual(['gateway']);
    expect(networks('postgres').filter(isExternal)).toEqual([]);
  });

  it('gives the agent no host network, port, volume or secret, and only its own key', () => {
    const agent = service('agent');
    const forbiddenKeys = [
      'network_mode',
      'ports',
      'volumes',
      'secrets',
      'env_file',
      'extra_hosts',
      'dns',
      'links',
      'pid',
    ];
    expect(
      Object.keys(agent).filter((key) => [...forbiddenKeys, 'privileged', 'devices', 'cap_add'].includes(key)),
    ).toEqual([]);
    expect(Object.keys(agent.environment ?? {})).toEqual(['ONCEGATE_URL', 'ONCEGATE_KEY']);
    expect(agent['cap_drop']).toEqual(['ALL']);
    for (const name of Object.keys(compose.services)) expect(service(name)['network_mode'], name).toBeUndefined();
  });
});

it('the compose file of the demo keeps PostgreSQL on an internal network', async () => {
  const { services, networks } = parse(await readFile('docker-compose.yml', 'utf8'), { merge: true }) as Compose;
  expect(services['postgres']?.networks?.map((name) => networks[name]?.internal)).toEqual([true]);
});

interface Peer {
  readonly namespaceSelector?: { readonly matchLabels: Readonly<Record<string, string>> };
  readonly podSelector?: { readonly matchLabels: Readonly<Record<string, string>> };
  readonly ipBlock?: { readonly cidr: string; readonly except?: readonly string[] };
}

interface NetworkPolicy {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: { readonly name: string; readonly namespace: string };
  readonly spec: {
    readonly podSelector: { readonly matchLabels?: Readonly<Record<string, string>> };
    readonly policyTypes: readonly string[];
    readonly egress?: readonly {
      readonly to?: readonly Peer[];
      readonly ports?: readonly { readonly port: number }[];
    }[];
    readonly ingress?: readonly { readonly from?: readonly Peer[] }[];
  };
}

describe('the network policies', () => {
  let policies: NetworkPolicy[];
  beforeAll(async () => {
    const documents = parseAllDocuments(await readFile('deploy/network-policy.yaml', 'utf8'));
    expect(documents.flatMap(({ errors }) => errors)).toEqual([]);
    policies = documents.map((document) => document.toJS() as NetworkPolicy);
  });
  const of = (namespace: string) => policies.filter(({ metadata }) => metadata.namespace === namespace);
  const egressOf = (namespace: string) => of(namespace).flatMap(({ spec }) => spec.egress ?? []);

  it('are NetworkPolicy objects, and deny by default in both namespaces', () => {
    for (const { apiVersion, kind } of policies)
      expect([apiVersion, kind]).toEqual(['networking.k8s.io/v1', 'NetworkPolicy']);
    for (const namespace of ['agents', 'oncegate']) {
      const deny = of(namespace).find(({ metadata }) => metadata.name === 'default-deny');
      expect(deny?.spec).toEqual({ podSelector: {}, policyTypes: ['Ingress', 'Egress'] });
    }
  });

  it('let agents reach only the gateway and the cluster DNS', () => {
    const reached = egressOf('agents').map(({ to, ports }) => ({
      to: to?.map((peer) => peer.namespaceSelector?.matchLabels['kubernetes.io/metadata.name'] ?? 'anywhere'),
      pods: to?.map((peer) => peer.podSelector?.matchLabels),
      ports: ports?.map(({ port }) => port),
    }));
    expect(reached).toEqual([
      { to: ['oncegate'], pods: [{ app: 'oncegate' }], ports: [8080] },
      { to: ['kube-system'], pods: [{ 'k8s-app': 'kube-dns' }], ports: [53, 53] },
    ]);
    expect(of('agents').flatMap(({ spec }) => spec.ingress ?? [])).toEqual([]);
  });

  it('let the gateway out to public addresses only', () => {
    const blocks = egressOf('oncegate').flatMap(({ to }) => to?.flatMap(({ ipBlock }) => ipBlock ?? []) ?? []);
    expect(blocks.map(({ cidr }) => cidr)).toEqual(['0.0.0.0/0']);
    const except = blocks[0]?.except ?? [];
    expect(except.map((net) => isPrivateAddress(net.split('/')[0] ?? ''))).toEqual(except.map(() => true));
    for (const net of ['10.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.168.0.0/16'])
      expect(except).toContain(net);
  });
});

describe('check-egress.mjs', () => {
  /** Runs the program through standard input, as the docs say. */
  const check = async (...targets: string[]) => {
    const child = spawn(process.execPath, ['--input-type=module', '-', ...targets]);
    createReadStream('deploy/check-egress.mjs').pipe(child.stdin);
    let output = '';
    child.stdout.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
    const [code] = await once(child, 'close');
    return { code, output };
  };

  it('exits 0 if no target is reachable, 1 if one is, and 2 for a bad argument', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const open = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    const closed = `127.0.0.1:${await findFreePort()}`;
    const [good, bad, wrong] = await Promise.all([check(closed), check(closed, open), check('nonsense')]);
    server.close();
    expect(good).toEqual({ code: 0, output: `${closed} closed (ECONNREFUSED)\n` });
    expect(bad.code).toBe(1);
    expect(bad.output).toContain(`${open} OPEN`);
    expect(wrong.code).toBe(2);
  });
});
