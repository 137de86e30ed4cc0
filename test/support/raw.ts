import { connect } from 'node:net';

/** Bytes as they are, to a server on loopback, and what comes back: so many answers, or all until it hangs up. */
export function sendRaw(port: number, bytes: string, answers = 1): Promise<string> {
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
      if (countCompleteResponses(text) >= answers) done();
    });
    socket.on('close', done);
    // A server that waits for more of a request has answered nothing, and never will.
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
