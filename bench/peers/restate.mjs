// The service that a Restate server calls: one ctx.run per call. The server stores the caller's key.
import './with-resolvers.mjs';
import { createServer } from 'node:http2';
import * as restate from '@restatedev/restate-sdk';
import { send } from './send.mjs';

const bench = restate.service({
  name: 'bench',
  handlers: {
    // ctx.rand is deterministic for an invocation, so a re-run gets the same key.
    charge: (ctx, args) => {
      const key = ctx.rand.uuidv4();
      return ctx.run('send', () => send(args, key));
    },
  },
});
const server = createServer(restate.createEndpointHandler({ services: [bench] }));
server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => console.log(`listening ${server.address().port}`));
