import { stringifyExact } from '../../exact-json.ts';
import { requestGateway } from '../../gateway-client.ts';
import { type Verb, VerbError } from '../../verb.ts';

export const openapiVerb: Verb = {
  name: 'openapi',
  summary: 'print the OpenAPI document of the running gateway',
  // Prints JSON with and without --json.
  run: async ({ io, out }) => {
    const document = await requestGateway(io, '/openapi.json', { key: 'optional' }).catch((error: unknown) => {
      if (!(error instanceof VerbError) || error.code !== 'unauthenticated') throw error;
      // ONCEGATE_KEY is usually the key of a person, who may call no tool.
      out.printNote('ONCEGATE_KEY is not the key of an agent. This is the public document, without tools.');
      return requestGateway(io, '/openapi.json', { key: 'none' });
    });
    io.stdout.write(`${stringifyExact(document)}\n`);
    return 0;
  },
};
