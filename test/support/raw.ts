import { connect } from 'node:net';

/** Sends bytes unchanged to a server on loopback. Returns after `responses` complete responses, or when the server closes. */
export function sendRaw(port: number, bytes: string, responses = 1): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: '127.0.0.1', port });
    let text = '';
    const done = () => {
      socket.destroy();
      resolve(text);
    };
    socket.on('error', (error) => (text === '' ? reject(error) : done()));
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1');
      if (countCompleteResponses(text) >= responses) done();
    });
    socket.on('close', done);
    // A server that waits for the rest of the request never answers, so the wait is bounded.
    socket.setTimeout(10_000, done);
    socket.write(Buffer.from(bytes, 'latin1'));
  });
}

function countCompleteResponses(text: string): number {
  const end = text.indexOf('\r\n\r\n');
  if (end === -1) return 0;
  const [, length] = /^content-length: *(\d+)/im.exec(text.slice(0, end)) ?? [];
  const rest = text.slice(end + 4);
  if (length === undefined) return /^HTTP\/1\.1 1/.test(text) ? countCompleteResponses(rest) : 0;
  return rest.length < Number(length) ? 0 : 1 + countCompleteResponses(rest.slice(Number(length)));
}
