import { renderRequest } from '../../adapters/http/render-request.ts';
import type { JsonObject } from '../../gateway/domain/json.ts';
import { listFaults, type RequestTemplate, type Tool } from '../../gateway/domain/policy.ts';

/** A document with every kind of thing that is imported. */
export const PETS_OPENAPI = `openapi: 3.0.3
info: { title: Pets, version: "1" }
servers: [{ url: https://elsewhere.example/v9 }]
paths:
  /pets:
    get:
      operationId: listPets
      summary: List pets.
      parameters:
        - { name: limit, in: query, schema: { type: integer, minimum: 1 } }
        - { name: tag, in: query, schema: { type: array, items: { type: string } } }
        - { name: ids, in: query, explode: false, schema: { type: array, items: { type: integer } } }
        - { name: page-size, in: query, schema: { type: integer } }
        - { name: X-Trace, in: header, schema: { type: string } }
        - { name: Authorization, in: header, required: true, schema: { type: string } }
      responses:
        200: { description: ok }
    post:
      operationId: createPet
      requestBody:
        required: true
        content:
          application/json: { schema: { $ref: "#/components/schemas/Pet" } }
      responses: { "201": { description: made } }
  /pets/{petId}:
    parameters:
      - $ref: "#/components/parameters/PetId"
    get:
      operationId: getPet
      responses: { "200": { description: ok } }
    put:
      operationId: replacePet
      parameters: [{ name: dry, in: query, required: true, schema: { type: boolean } }]
      requestBody: { $ref: "#/components/requestBodies/Pet" }
      responses: { "200": { description: ok } }
    delete:
      responses: { "204": { description: gone } }
  /pets/{petId}/feed:
    post:
      operationId: pets/feed
      parameters: [{ $ref: "#/components/parameters/PetId" }]
      responses: { "200": { description: ok } }
  /pets/{petId}/rename:
    patch:
      operationId: rename
      parameters: [{ $ref: "#/components/parameters/PetId" }]
      requestBody:
        content:
          application/merge-patch+json:
            schema: { type: object, properties: { petId: { type: string } }, required: [petId] }
      responses: { "200": { description: ok } }
components:
  parameters:
    PetId: { name: petId, in: path, required: true, description: Which pet., schema: { type: string } }
  requestBodies:
    Pet: { content: { application/json: { schema: { $ref: "#/components/schemas/Pet" } } } }
  schemas:
    Pet:
      type: object
      required: [id, name]
      additionalProperties: false
      properties:
        id: { type: integer, readOnly: true }
        name: { type: string, example: Rex }
        age: { type: integer, nullable: true, minimum: 0, exclusiveMinimum: true, maximum: 9223372036854775807 }
        parent: { $ref: "#/components/schemas/Pet" }
`;

export const PETS_IMPORT_POLICY = `upstreams:
  pets: { adapter: http, url: "http://pets.example/v1", import: api/pets.yaml }
`;

/** Renders the request of a tool: request line, own headers and body. */
export function renderToolRequest(
  tool: Tool | undefined,
  args: JsonObject,
): { line: string; headers: JsonObject; body: unknown } {
  if (tool === undefined) throw new Error('The tool does not exist.');
  const faults = listFaults(tool.faults(args));
  if (faults.length > 0) throw new Error(faults.join('; '));
  const { method, path, headers, body } = renderRequest(
    tool,
    tool.request as RequestTemplate,
    { args, agent: 'bot' } as never,
    'txn',
  );
  const { accept: _, 'user-agent': __, 'oncegate-txn': ___, ...own } = headers as Record<string, string>;
  return { line: `${method} ${path}`, headers: own, body: body === null ? undefined : JSON.parse(body) };
}
