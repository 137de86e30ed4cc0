import type { JsonObject } from '../../domain/json.ts';

/** What the parts of the OpenAPI document are made of. */
export const ref = (name: string): JsonObject => ({ $ref: `#/components/schemas/${name}` });
export const json = (schema: JsonObject): JsonObject => ({ 'application/json': { schema } });
export const callAnswer = (description: string): JsonObject => ({ description, content: json(ref('Call')) });
export const path = (name: string): JsonObject => ({ name, in: 'path', required: true, schema: { type: 'string' } });
export const query = (name: string, schema: JsonObject = { type: 'string' }): JsonObject => ({
  name,
  in: 'query',
  schema,
});
export const problem: JsonObject = { $ref: '#/components/responses/Problem' };

/** Of a run or saga. */
export const TAINTED: JsonObject = {
  type: ['object', 'null'],
  description: 'The first call by which what strangers wrote was read in it; null while it is clean.',
  properties: {
    txn: { type: ['string', 'null'], format: 'uuid', description: 'Null: a resource or prompt, which is no call.' },
    tool: { type: 'string' },
    since: { type: 'string', format: 'date-time' },
  },
};
