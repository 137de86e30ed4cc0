import { askGateway } from '../../ask-gateway.ts';
import { stringifyExact } from '../../exact-json.ts';
import { NotGood, type Verb } from '../../verb.ts';

export const openapiVerb: Verb = {
  name: 'openapi',
  summary: 'the OpenAPI document of the running gateway',
  // It is JSON whether or not somebody says so.
  run: async ({ io, out }) => {
    const document = await askGateway(io, '/openapi.json', { key: 'optional' }).catch((error: unknown) => {
      if (!(error instanceof NotGood) || error.code !== 'unauthenticated') throw error;
      // ONCEGATE_KEY is mostly that of a person, who may call no tool.
      out.note('ONCEGATE_KEY is not the key of an agent: this is the document for everybody, without tools.');
      return askGateway(io, '/openapi.json', { key: 'none' });
    });
    io.stdout.write(`${stringifyExact(document)}\n`);
    return 0;
  },
};
