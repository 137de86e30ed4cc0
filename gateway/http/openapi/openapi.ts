import { CALL_STATES } from '../../domain/calls/call-state.ts';
import { ERRORS } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent, Policies, Tool } from '../../domain/policy.ts';
import { listCallableTools } from '../catalogue.ts';
import { auditPaths } from './openapi-audit.ts';
import { consolePaths } from './openapi-console.ts';
import { callAnswer, json, path, problem, query, ref } from './openapi-parts.ts';
import { RUN_SCHEMAS, runPaths } from './openapi-runs.ts';
import { SAGA_SCHEMAS, sagaPaths } from './openapi-sagas.ts';

/** OpenAPI 3.1 of the API; for a known agent with one operation per tool it may call. */
export function openApi(policies: Policies, agent: Agent | undefined, version: string): JsonObject {
  const tools = agent === undefined ? [] : listCallableTools(policies, agent);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Oncegate',
      version,
      description: 'Every tool call happens once, within policy.',
      license: { name: 'Apache-2.0' },
    },
    security: [{ bearer: [] }],
    paths: {
      ...BASE_PATHS,
      ...sagaPaths(),
      ...runPaths(),
      ...authorityPaths(),
      ...auditPaths(),
      ...consolePaths(),
      ...Object.fromEntries(tools.map((tool) => [`/v1/tools/${tool.name}`, { post: toolOperation(tool) }])),
    },
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } },
      parameters: PARAMETERS,
      responses: {
        Problem: {
          description: 'What was wrong and whether asking again helps.',
          content: { 'application/problem+json': { schema: ref('Problem') } },
        },
      },
      schemas: { Call: CALL, Problem: PROBLEM, ...SAGA_SCHEMAS, ...RUN_SCHEMAS },
    },
  };
}

const CALL: JsonObject = {
  type: 'object',
  required: ['txn', 'tool', 'state', 'replayed', 'result', 'attempts'],
  properties: {
    txn: { type: 'string', format: 'uuid' },
    tool: { type: 'string' },
    state: { type: 'string', enum: [...CALL_STATES] },
    replayed: { type: 'boolean' },
    hold: {
      type: 'object',
      description: 'Of a held call: whether it waits for people, or leaves by itself; and until when.',
      properties: {
        kind: { type: 'string', enum: ['approval', 'delay'] },
        until: { type: 'string', format: 'date-time' },
      },
    },
    result: {},
    outcome: { type: ['string', 'null'] },
    saga: { type: ['string', 'null'], format: 'uuid' },
    run: { type: ['string', 'null'], format: 'uuid' },
    epoch: { type: ['integer', 'null'] },
    lockToken: { type: ['integer', 'null'], description: 'Grows with every taking of locks.' },
    undo: ref('Undo'),
    undoes: { type: 'string', format: 'uuid', description: 'The call that this one undoes.' },
    attempts: { type: 'integer' },
    receipt: { type: ['object', 'null'], properties: { leaf: { type: 'string' } } },
  },
};

const PROBLEM: JsonObject = {
  type: 'object',
  required: ['type', 'title', 'status', 'detail', 'code', 'retry'],
  properties: {
    type: { type: 'string' },
    title: { type: 'string' },
    status: { type: 'integer' },
    detail: { type: 'string' },
    instance: { type: 'string' },
    code: { type: 'string', enum: Object.keys(ERRORS) },
    retry: { type: 'string', enum: ['never', 'same_key', 'new_key', 'after_delay'] },
    txn: { type: 'string', format: 'uuid' },
  },
};

const PARAMETERS: JsonObject = {
  IdempotencyKey: { name: 'Idempotency-Key', in: 'header', schema: { type: 'string', minLength: 1, maxLength: 255 } },
  Prefer: {
    name: 'Prefer',
    in: 'header',
    schema: { type: 'string' },
    description: 'wait=N (at most 55) or respond-async',
  },
  DryRun: { name: 'Oncegate-Dry-Run', in: 'header', schema: { type: 'string', enum: ['?0', '?1'] } },
  Saga: {
    name: 'Oncegate-Saga',
    in: 'header',
    schema: { type: 'string', format: 'uuid' },
    description: 'The saga that the call is a step of.',
  },
  DependsOn: {
    name: 'Oncegate-Depends-On',
    in: 'header',
    schema: { type: 'string' },
    description: 'The txns of the steps that it rests on, separated by commas, or none. Absent: all earlier steps.',
  },
  Run: {
    name: 'Oncegate-Run',
    in: 'header',
    schema: { type: 'string', format: 'uuid' },
    description: 'The run that the call is made in. Goes with Oncegate-Epoch.',
  },
  Epoch: {
    name: 'Oncegate-Epoch',
    in: 'header',
    schema: { type: 'integer', minimum: 1 },
    description: 'The epoch that the agent holds: in any but the current one the call is fenced.',
  },
  Undo: {
    name: 'Oncegate-Undo',
    in: 'header',
    schema: { type: 'string' },
    description: 'JSON {"tool": …, "args": …}: what undoes this call, in place of what its tool says.',
  },
};

const CALL_PARAMETERS = Object.keys(PARAMETERS).map((name) => ({ $ref: `#/components/parameters/${name}` }));
const CALL_RESPONSES: JsonObject = {
  200: callAnswer('Succeeded, now or before.'),
  202: callAnswer('Held, or still under way.'),
  default: problem,
};
const PAGE_TEXT = 'A page of calls. It ends early when it holds about 4 MiB; the cursor leads on.';
const FILTERS = ['state', 'tool', 'saga', 'run', 'since', 'until', 'cursor', 'limit'].map((name) => query(name));
const PAGE = json({
  type: 'object',
  properties: { items: { type: 'array', items: ref('Call') }, cursor: { type: ['string', 'null'] } },
});

const BASE_PATHS: JsonObject = {
  '/v1/tools': {
    get: {
      summary: 'What this agent may call',
      parameters: [query('format', { enum: ['openai', 'anthropic'] })],
      responses: { 200: { description: 'Tools with their JSON schemas.' }, default: problem },
    },
  },
  '/v1/tools/{tool}': {
    post: {
      summary: 'Call a tool',
      parameters: [path('tool'), ...CALL_PARAMETERS],
      requestBody: { required: true, content: json({ type: 'object' }) },
      responses: CALL_RESPONSES,
    },
  },
  '/v1/calls': {
    get: {
      summary: "The agent's own calls, newest first",
      parameters: FILTERS,
      responses: { 200: { description: PAGE_TEXT, content: PAGE }, default: problem },
    },
  },
  '/v1/calls/{txn}': {
    get: {
      summary: 'One call',
      parameters: [path('txn'), query('wait', { type: 'integer' })],
      responses: { 200: callAnswer('The call as it stands.'), default: problem },
    },
  },
  '/v1/calls/{txn}/cancel': {
    post: {
      summary: 'Withdraw a held call',
      parameters: [path('txn')],
      responses: { 200: callAnswer('It is withdrawn.'), default: problem },
    },
  },
  '/v1/proxy/{upstream}/{path}': {
    post: {
      summary: 'The same for tools that already speak HTTP: any method',
      parameters: [path('upstream'), path('path'), ...CALL_PARAMETERS],
      responses: { default: { description: "The upstream's own answer, or a problem." } },
    },
  },
  '/admin/calls': {
    get: {
      summary: 'All calls, newest first',
      parameters: [query('agent'), ...FILTERS],
      responses: { 200: { description: PAGE_TEXT, content: PAGE }, default: problem },
    },
  },
  '/admin/calls/{txn}': {
    get: {
      summary: 'One call with its timeline',
      parameters: [path('txn')],
      responses: { 200: callAnswer('The call.'), default: problem },
    },
  },
  '/admin/calls/{txn}/resolve': {
    post: {
      summary: 'Answer a doubt',
      parameters: [path('txn')],
      requestBody: {
        required: true,
        content: json({
          type: 'object',
          required: ['verdict', 'reason'],
          properties: {
            verdict: { enum: ['applied', 'not_applied', 'retry'] },
            result: {},
            reason: { type: 'string' },
            senderIsDead: { type: 'boolean' },
          },
        }),
      },
      responses: { 200: callAnswer('The call after the verdict.'), default: problem },
    },
  },
};

/** An action of a person: a reason and whatever else it takes. */
function action(
  summary: string,
  parameters: readonly string[],
  properties: JsonObject = {},
  required: readonly string[] = [],
): JsonObject {
  const schema = {
    type: 'object',
    required: ['reason', ...required],
    properties: { reason: { type: 'string' }, ...properties },
  };
  return {
    post: {
      summary,
      parameters: parameters.map(path),
      requestBody: { required: true, content: json(schema) },
      responses: { 200: { description: 'It is so, now or before.' }, default: problem },
    },
  };
}

function listing(summary: string, parameters: readonly string[] = []): JsonObject {
  const page = {
    description: 'A page. It may hold less than was asked for; the cursor leads on.',
    content: json({ type: 'object', properties: { items: { type: 'array' }, cursor: { type: ['string', 'null'] } } }),
  };
  return {
    get: { summary, parameters: parameters.map((name) => query(name)), responses: { 200: page, default: problem } },
  };
}

const MCP_PATH: JsonObject = {
  post: {
    summary: 'The Model Context Protocol, revisions 2025-06-18, 2025-11-25 and 2026-07-28',
    requestBody: { required: true, content: json({ type: 'object' }) },
    responses: { 200: { description: 'A JSON-RPC response, as JSON or as a stream.' }, default: problem },
  },
  get: {
    summary: 'What a session of an older revision hears without asking',
    responses: { 200: { description: 'A stream of JSON-RPC notifications.' }, default: problem },
  },
  delete: {
    summary: 'There is no session to end: each carries all there is to know in its id',
    responses: { 405: { description: 'Nothing to end.' }, default: problem },
  },
};

function authorityPaths(): JsonObject {
  const digest = { digest: { type: 'string', description: 'of what was shown' } };
  return {
    '/admin/approvals': listing('Calls that wait, or waited, for people', ['state', 'cursor']),
    '/admin/approvals/{txn}': {
      get: {
        summary: 'One of them, waiting or decided',
        parameters: [path('txn')],
        responses: { 200: { description: 'What is decided about, its digest, and the votes.' }, default: problem },
      },
    },
    '/admin/approvals/{txn}/approve': action('Let exactly what was shown run', ['txn'], digest, ['digest']),
    '/admin/approvals/{txn}/reject': action('End it unsent', ['txn'], digest, ['digest']),
    '/admin/locks': listing('What is locked, by whom and since when', ['agent', 'holder', 'cursor', 'limit']),
    '/admin/breakers': listing('Breakers of the upstreams'),
    '/admin/breakers/{upstream}/open': action('Send nothing to an upstream until it is closed by hand', ['upstream']),
    '/admin/breakers/{upstream}/close': action('Send again, and forget what was counted', ['upstream']),
    '/admin/pins': listing('What MCP servers said of their tools, and what they say now'),
    '/admin/pins/{upstream}/{tool}/accept': action(
      'Accept what a server now says of a tool',
      ['upstream', 'tool'],
      digest,
      ['digest'],
    ),
    '/mcp': MCP_PATH,
    '/admin/agents': listing('Agents, their rules, and what freezes them'),
    '/admin/agents/{agent}/freeze': action('Nothing new of this agent is sent', ['agent']),
    '/admin/agents/{agent}/unfreeze': action('Lift it', ['agent']),
    '/admin/freezes': listing('What is switched off, by whom and why'),
    '/admin/freeze': action('Nothing new is sent, of one tool or at all', [], { tool: { type: 'string' } }),
    '/admin/unfreeze': action('Lift it', [], { tool: { type: 'string' } }),
    '/admin/policies': {
      get: {
        summary: 'The policies in force',
        responses: { 200: { description: 'Version and names.' }, default: problem },
      },
    },
    '/admin/policies/reload': {
      post: {
        summary: 'Read the policies again',
        responses: { 200: { description: 'The version in force.' }, default: problem },
      },
    },
    '/admin/explain': {
      post: {
        summary: 'What a call would meet, decided and explained, nothing sent',
        requestBody: {
          required: true,
          content: json({
            type: 'object',
            required: ['agent', 'tool', 'args'],
            properties: { agent: { type: 'string' }, tool: { type: 'string' }, args: { type: 'object' } },
          }),
        },
        responses: { 200: { description: 'Every rule tried, and what would be answered.' }, default: problem },
      },
    },
  };
}

function toolOperation(tool: Tool): JsonObject {
  return {
    operationId: tool.name.replaceAll('.', '__'),
    summary: tool.description,
    parameters: CALL_PARAMETERS,
    requestBody: { required: true, content: json(tool.input) },
    responses: CALL_RESPONSES,
  };
}
