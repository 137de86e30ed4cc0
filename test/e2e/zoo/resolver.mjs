// Loaded into a gateway before itself. Names under .example are asked of the DNS server that the test runs, where a machine
// would ask that of its network; all else of the gateway, and all else that it looks up, is as it is.
import dns from 'node:dns';
import { syncBuiltinESMExports } from 'node:module';

const resolver = new dns.promises.Resolver({ timeout: 10_000, tries: 1 });
resolver.setServers([process.env.TEST_NAME_SERVER]);
const system = dns.lookup;

const none = () => [];
async function resolve(name) {
  const v4 = await resolver.resolve4(name).catch(none);
  const v6 = await resolver.resolve6(name).catch(none);
  return [...v4.map((address) => ({ address, family: 4 })), ...v6.map((address) => ({ address, family: 6 }))];
}

dns.lookup = (name, options, callback) => {
  if (!name.endsWith('.example')) return system(name, options, callback);
  resolve(name).then((found) => {
    if (found.length > 0) return callback(null, found);
    callback(Object.assign(new Error(`getaddrinfo ENOTFOUND ${name}`), { code: 'ENOTFOUND' }));
  });
};
syncBuiltinESMExports();
