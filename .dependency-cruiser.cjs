// The rooms and their arrows: server/app know everybody; http and mcp know flow; flow knows policy, ledger and adapters;
// those three never know one another; domain knows nobody. `npm run check` fails when an arrow points the wrong way.
const room = (name, from, forbidden, comment) => ({ name, severity: 'error', comment, from: { path: from }, to: { path: forbidden } });

module.exports = {
  forbidden: [
    { name: 'no-cycles', severity: 'error', from: {}, to: { circular: true } },
    room('domain-knows-nobody', '^gateway/domain/', '^(gateway/(?!domain/)|adapters/|demo/)', 'domain holds meaning only'),
    room('policy-is-judgement', '^gateway/policy/', '^(gateway/(?!policy/|domain/)|adapters/|demo/)', 'policy judges; it neither stores nor sends'),
    room('ledger-is-sql', '^gateway/ledger/', '^(gateway/(?!ledger/|domain/)|adapters/|demo/)', 'the ledger remembers; it neither judges nor sends'),
    room('adapters-only-send', '^adapters/', '^(gateway/(?!domain/)|demo/)', 'an adapter cannot reach the ledger: no transaction is open across the network'),
    room('flow-orders', '^gateway/flow/', '^(gateway/(http|mcp|cli|app|server|config)|demo/)', 'flow orders the stations and speaks no protocol'),
    room('flow-speaks-no-protocol', '^gateway/flow/', 'node_modules/(pg|undici|fastify)/', 'no SQL, no HTTP in flow'),
    room('http-and-mcp-speak', '^gateway/(http|mcp)/', '^(gateway/(ledger|cli|server|config)|adapters/|demo/)', 'routes go through flow'),
    room('sql-has-one-room', '^(gateway/(?!ledger/)|adapters/|demo/)', 'node_modules/pg/', 'every SQL statement lives in gateway/ledger'),
    room('one-opener-of-sockets', '^(gateway/(?!cli/)|demo/)', 'node_modules/undici/', 'only adapters open sockets to upstreams'),
    { name: 'one-reader-of-env', severity: 'error', from: { path: '^gateway/(?!server|app|cli/)' }, to: { path: '^gateway/config' } },
    { name: 'no-orphans', severity: 'error', from: { orphan: true, pathNot: ['\\.d\\.ts$'] }, to: {} },
  ],
  options: { doNotFollow: { path: 'node_modules' }, tsConfig: { fileName: 'tsconfig.json' }, tsPreCompilationDeps: true },
};
