// Tries to connect to each given host:port and prints which can be reached. Run it where the agent runs:
//   node --input-type=module - example.com:443 1.1.1.1:443 < check-egress.mjs
// Exit code 0: none can be reached, as it should be. 1: at least one can be reached. 2: wrong usage.
import { connect } from 'node:net';

const addresses = process.argv.slice(2).map((text) => /^\[?([^\]]+?)\]?:(\d+)$/.exec(text));
if (addresses.length === 0 || addresses.includes(null)) {
  process.stderr.write('usage: node --input-type=module - HOST:PORT… < check-egress.mjs\n');
  process.exit(2);
}

const tryConnect = ([, host, port]) =>
  new Promise((resolve) => {
    const socket = connect({ host, port: Number(port), timeout: 5_000 });
    const finish = (isOpen, reason) => {
      process.stdout.write(`${host}:${port} ${isOpen ? 'OPEN' : `closed (${reason})`}\n`);
      socket.destroy();
      resolve(isOpen);
    };
    socket.once('connect', () => finish(true));
    socket.once('timeout', () => finish(false, 'no answer'));
    socket.once('error', (error) => finish(false, error.code));
  });

const reached = await Promise.all(addresses.map(tryConnect));
process.exitCode = reached.includes(true) ? 1 : 0;
