// The upstream: answers 1 KB at once and stores nothing, so that it costs as little as possible.
import { createServer } from 'node:http';

const body = JSON.stringify({ id: 'ch_1', pad: 'x'.repeat(1000) });
const server = createServer((request, response) => {
  request.resume();
  request.on('end', () => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
    response.end(body);
  });
});
server.keepAliveTimeout = 60_000;
server.listen(0, '127.0.0.1', () => console.log(`listening ${server.address().port}`));
