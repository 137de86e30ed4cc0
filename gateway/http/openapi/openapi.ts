import { z } from 'zod';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent, Policies, Tool } from '../../domain/policy.ts';
import { listCallableTools } from '../catalogue.ts';
import { problemAnswer } from '../schemas/call-schemas.ts';
import { count, text, uuid } from '../schemas/fields.ts';
import { ADMIN_OPERATIONS } from './admin-operations.ts';
import { AGENT_OPERATIONS, CALL_TOOL } from './agent-operations.ts';
import { OpenApiWriter, parameter } from './operation.ts';

const PROBLEM_RESPONSE = 'What was wrong, and whether another try can help.';

/** The request headers of a call. Operations refer to them by these names. */
const HEADERS = {
  IdempotencyKey: header('Idempotency-Key', z.string().min(1).max(255)),
  Prefer: header('Prefer', text.describe('wait=N (at most 55) or respond-async')),
  DryRun: header('Oncegate-Dry-Run', z.enum(['?0', '?1'])),
  Saga: header('Oncegate-Saga', uuid.describe('The saga that the call is a step of.')),
  DependsOn: header(
    'Oncegate-Depends-On',
    text.describe(
      'The txns of the steps that this step depends on, separated by commas, or none. Absent: all earlier.',
    ),
  ),
  Run: header('Oncegate-Run', uuid.describe('The run of the call. Needs Oncegate-Epoch.')),
  Epoch: header(
    'Oncegate-Epoch',
    z.int().min(1).describe('The epoch that the agent holds. A call with an older epoch is fenced.'),
  ),
  LastEventId: header('Last-Event-ID', count.describe('Continues after this event. Absent: from now on.')),
  Undo: header('Oncegate-Undo', text.describe('JSON {"tool": …, "args": …}: replaces the undo of the tool.')),
};

function header(name: string, schema: z.ZodType): JsonObject {
  return parameter('header', name, new OpenApiWriter({}).schema(schema));
}

const writer = new OpenApiWriter(HEADERS);
const PATHS = writer.paths({ ...AGENT_OPERATIONS, ...ADMIN_OPERATIONS });
const TOOL_OPERATION = writer.operation('', CALL_TOOL);
const COMPONENTS: JsonObject = {
  securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } },
  parameters: HEADERS,
  responses: { Problem: writer.answer([PROBLEM_RESPONSE, problemAnswer, 'application/problem+json']) },
  schemas: writer.schemas,
};

/** The OpenAPI 3.1 document of the API. For a known agent it has one operation per tool that the agent may call. */
export function openApi(policies: Policies, agent: Agent | undefined, version: string): JsonObject {
  const tools = agent === undefined ? [] : listCallableTools(policies, agent);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Oncegate',
      version,
      description: 'Sends each tool call of an agent once, if a policy allows it.',
      license: { name: 'Apache-2.0' },
    },
    security: [{ bearer: [] }],
    paths: {
      ...PATHS,
      ...Object.fromEntries(tools.map((tool) => [`/v1/tools/${tool.name}`, { post: toolOperation(tool) }])),
    },
    components: COMPONENTS,
  };
}

function toolOperation(tool: Tool): JsonObject {
  return {
    ...TOOL_OPERATION,
    summary: tool.description,
    operationId: tool.name.replaceAll('.', '__'),
    requestBody: { required: true, content: { 'application/json': { schema: tool.input } } },
  };
}
