// The baseline: a proxy with the same fastify and undici that parses and forwards JSON, without ledger and policies.
import Fastify from 'fastify';
import { Pool } from 'undici';

const pool = new Pool(process.env.UPSTREAM, { connections: 64, pipelining: 1 });
const app = Fastify({ logger: false });
app.post('/v1/tools/:tool', (request, reply) => {
  const chunks = [];
  let status = 0;
  pool.dispatch(
    {
      path: '/charges',
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(request.body),
    },
    {
      onRequestStart() {},
      onResponseStart(_controller, code) {
        status = code;
      },
      onResponseData(_controller, chunk) {
        chunks.push(chunk);
      },
      onResponseEnd() {
        reply.status(status).type('application/json').send(Buffer.concat(chunks));
      },
      onResponseError(_controller, error) {
        reply.status(502).send(error.message);
      },
    },
  );
  return reply;
});
await app.listen({ port: 0, host: '127.0.0.1' });
console.log(`listening ${app.server.address().port}`);
