// DBOS behind the same fastify: one workflow per call, with the idempotency key as its id and with one step.
import { DBOS } from '@dbos-inc/dbos-sdk';
import Fastify from 'fastify';
import { send } from './send.mjs';

const retriesAllowed = process.env.RETRY_STEPS === '1';
const charge = DBOS.registerWorkflow(
  (args) => DBOS.runStep(() => send(args, DBOS.workflowID), { name: 'send', retriesAllowed }),
  { name: 'charge' },
);
// The caller gets the error of a step, so the log stays quiet.
const ignore = () => {};
DBOS.setConfig({
  name: 'bench',
  systemDatabaseUrl: process.env.DATABASE_URL,
  systemDatabasePoolSize: 20,
  logger: { debug: ignore, info: ignore, warn: ignore, error: ignore },
});
await DBOS.launch();

const app = Fastify({ logger: false });
app.post('/charge', async (request) => {
  const handle = await DBOS.startWorkflow(charge, { workflowID: request.headers['idempotency-key'] })(request.body);
  return handle.getResult();
});
await app.listen({ port: Number(process.env.PORT ?? 0), host: '127.0.0.1' });
console.log(`listening ${app.server.address().port}`);
