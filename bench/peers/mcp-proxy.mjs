// mcp-proxy with its defaults, in front of the MCP server of the benchmark over standard streams. Prints its port.
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import { dirname, join } from 'node:path';

const { PORT, SERVER } = process.env;
const home = dirname(createRequire(import.meta.url).resolve('mcp-proxy/package.json'));
const program = join(home, 'dist/bin/mcp-proxy.mjs');
const args = [
  program,
  '--host',
  '127.0.0.1',
  '--port',
  PORT,
  '--server',
  'stream',
  '--',
  process.execPath,
  SERVER,
  '--stdio',
];
const child = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'inherit'] });
child.once('exit', (code) => process.exit(code ?? 1));
for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => child.kill('SIGKILL'));
process.once('exit', () => child.kill('SIGKILL'));

const isListening = () =>
  new Promise((resolve) => {
    const socket = connect(Number(PORT), '127.0.0.1', () => socket.end(() => resolve(true)));
    socket.once('error', () => setTimeout(() => resolve(false), 50));
  });
while (!(await isListening()));
console.log(`listening ${PORT}`);
