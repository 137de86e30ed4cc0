// Preloaded into a gateway process. The DNS server of the test resolves names under .example; the system resolves all other
// names, and nothing else of the gateway changes.
import dns from 'node:dns';
import { syncBuiltinESMExports } from 'node:module';

const resolver = new dns.promises.Resolver({ timeout: 10_000, tries: 1 });
resolver.setServers([process.env.TEST_NAME_SERVER]);
const systemLookup = dns.lookup;

const returnNone = () => [];
async function resolve(name) {
  const v4 = await resolver.resolve4(name).catch(returnNone);
  const v6 = await resolver.resolve6(name).catch(returnNone);
  return [...v4.map((address) => ({ address, family: 4 })), ...v6.map((address) => ({ address, family: 6 }))];
}

dns.lookup = (name, options, callback) => {
  if (!name.endsWith('.example')) return systemLookup(name, options, callback);
  resolve(name).then((found) => {
    if (found.length > 0) return callback(null, found);
    callback(Object.assign(new Error(`getaddrinfo ENOTFOUND ${name}`), { code: 'ENOTFOUND' }));
  });
};
syncBuiltinESMExports();
