import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase, type TestDatabase } from './database.ts';
import { buildFaultPolicies } from './fault-policies.ts';
import { type Gateway, type GatewayOptions, makeGateway } from './gateway.ts';
import { forwardTo, type Scope, stopAfterTest, useResource } from './use-resource.ts';

type Variables = Readonly<Record<string, string>>;
/** YAML texts by file name, or one YAML text. */
type PolicyFiles = Variables | string;

export interface GatewaySetup {
  /** Default: a tool of every kind (`buildFaultPolicies`). A function is given the URL of the upstream. */
  readonly policies?: PolicyFiles | ((upstreamUrl: string) => PolicyFiles);
  readonly env?: Variables | ((upstreamUrl: string) => Variables);
  /** The text of `oncegate.yaml`. */
  readonly config?: string | (() => string);
  /** An upstream that another call started, or `none`. Default: a counting upstream of its own. */
  readonly upstream?: TestUpstream | 'none';
  /** A database that another call created, or `embedded` for the gateway's own PostgreSQL. Default: a new database. */
  readonly database?: TestDatabase | 'embedded';
  /** Where the gateway finds its database, if not at `database.url`: a proxy, for example. */
  readonly databaseUrl?: () => string;
  /** Whether the gateways are started. Default: true. */
  readonly start?: boolean;
}

/** Gateways that share a database, a directory of policies and an upstream. */
export interface GatewaySystem<Replicas> {
  readonly upstream: TestUpstream;
  readonly database: TestDatabase;
  /** The first replica. */
  readonly gateway: Gateway;
  readonly replicas: Replicas;
}

interface ReplicaTuples {
  1: readonly [Gateway];
  2: readonly [Gateway, Gateway];
  3: readonly [Gateway, Gateway, Gateway];
}

/**
 * A running system for the tests of a file: upstream, database and one or more gateway processes. Everything starts
 * before the tests and stops after them; with the scope `test`, before and after each test.
 */
export function useGateway<Count extends 1 | 2 | 3 = 1>(
  setup: GatewaySetup & { readonly replicas?: Count; readonly scope?: Scope } = {},
): GatewaySystem<ReplicaTuples[Count]> {
  const { scope = 'file' } = setup;
  const upstream =
    setup.upstream === 'none' ? createMissingPart<TestUpstream>() : (setup.upstream ?? useUpstream(scope));
  const database =
    setup.database === 'embedded' ? createMissingPart<TestDatabase>() : (setup.database ?? useDatabase(scope));
  const useReplica = (first?: Gateway) =>
    useResource(
      () => prepareGateway(setup, { upstream, database, first }),
      (gateway) => gateway.dispose(),
      scope,
    );
  const gateway = useReplica();
  const others = Array.from({ length: (setup.replicas ?? 1) - 1 }, () => useReplica(gateway));
  return { upstream, database, gateway, replicas: [gateway, ...others] as unknown as ReplicaTuples[Count] };
}

/** Two replicas by name, for tests of what replicas do together. */
export function useReplicas(setup: GatewaySetup & { readonly scope?: Scope } = {}) {
  const { upstream, database, replicas } = useGateway({ ...setup, replicas: 2 });
  const [one, two] = replicas;
  return { upstream, database, one, two, replicas };
}

/** The system of `useGateway` for a single test. Everything stops when that test ends. */
export async function startGatewayForTest(setup: GatewaySetup = {}): Promise<Omit<GatewaySystem<never>, 'replicas'>> {
  const upstream =
    setup.upstream === 'none' ? createMissingPart<TestUpstream>() : (setup.upstream ?? (await startUpstreamForTest()));
  const database =
    setup.database === 'embedded'
      ? createMissingPart<TestDatabase>()
      : (setup.database ?? (await createDatabaseForTest()));
  const gateway = await stopAfterTest(prepareGateway(setup, { upstream, database }), (started) => started.dispose());
  return { upstream, database, gateway };
}

/** Another replica beside a gateway, for one test. The test starts it, so that it can set the environment. */
export function makeReplicaForTest(gateway: Gateway): Promise<Gateway> {
  return stopAfterTest(makeReplica(gateway), (replica) => replica.dispose());
}

/** The counting upstream (test/faults/upstream.mjs). */
export function useUpstream(scope: Scope = 'file'): TestUpstream {
  return useResource(startUpstream, (upstream) => upstream.stop(), scope);
}

export function startUpstreamForTest(): Promise<TestUpstream> {
  return stopAfterTest(startUpstream(), (upstream) => upstream.stop());
}

/** A database cloned from the migrated template. */
export function useDatabase(scope: Scope = 'file'): TestDatabase {
  return useResource(createTestDatabase, (database) => database.drop(), scope);
}

export function createDatabaseForTest(): Promise<TestDatabase> {
  return stopAfterTest(createTestDatabase(), (database) => database.drop());
}

interface Parts {
  readonly upstream: TestUpstream;
  readonly database: TestDatabase;
  /** The replica whose directories this one shares. */
  readonly first?: Gateway | undefined;
}

async function prepareGateway(setup: GatewaySetup, { upstream, database, first }: Parts): Promise<Gateway> {
  const gateway = first === undefined ? await makeFirstGateway(setup, upstream, database) : await makeReplica(first);
  if (setup.start === false) return gateway;
  try {
    await gateway.start();
  } catch (error) {
    await gateway.dispose();
    throw error;
  }
  return gateway;
}

function makeFirstGateway(setup: GatewaySetup, upstream: TestUpstream, database: TestDatabase): Promise<Gateway> {
  const upstreamUrl = setup.upstream === 'none' ? '' : upstream.url;
  const { policies = buildFaultPolicies, env = {}, config } = setup;
  const files = typeof policies === 'function' ? policies(upstreamUrl) : policies;
  const options: GatewayOptions = {
    policies: typeof files === 'string' ? { 'policies.yaml': files } : files,
    env: typeof env === 'function' ? env(upstreamUrl) : env,
    ...(config === undefined ? {} : { config: typeof config === 'function' ? config() : config }),
    ...(setup.database === 'embedded' ? {} : { databaseUrl: setup.databaseUrl?.() ?? database.url }),
  };
  return makeGateway(options);
}

const makeReplica = (first: Gateway) => makeGateway({ ...first.options, beside: first });

/** A proxy for a part that the set-up leaves out. Every use throws. */
function createMissingPart<T extends object>(): T {
  return forwardTo(() => {
    throw new Error('The set-up of this test leaves this part out.');
  });
}
