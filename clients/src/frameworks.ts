import type { OncegateClient, ToolDescription } from './client.ts';
import { callKey } from './key.ts';
import { explainOutcome, OncegateError } from './outcome.ts';

export interface ToolsOptions {
  /**
   * The name of this run of the agent, such as a thread or job id. Part of every key, so it must stay the same when the
   * agent resumes after a crash. Needed if call ids are not unique (see `callKey`).
   */
  readonly run?: string;
  /** `tell` (default) describes a failure to the model; `throw` throws an `OncegateError`. */
  readonly errors?: 'tell' | 'throw';
}

/** Makes one call, with the call id of the framework. Returns a result that a model can read. */
type ToolCaller = (callId: string | undefined, args: unknown, signal?: AbortSignal) => Promise<unknown>;

interface AdaptedTool {
  /** `billing__charge` for `billing.charge`, because model vendors refuse dots. */
  readonly name: string;
  readonly description: string;
  readonly input: Record<string, unknown>;
  readonly call: ToolCaller;
}

async function loadTools(client: OncegateClient, options: ToolsOptions): Promise<AdaptedTool[]> {
  const generated = crypto.randomUUID();
  const tools = await client.tools();
  return tools.map((tool) => ({
    name: tool.name.replaceAll('.', '__'),
    description: tool.description,
    input: tool.input,
    call: buildToolCaller(client, tool, options, generated),
  }));
}

function buildToolCaller(
  client: OncegateClient,
  tool: ToolDescription,
  options: ToolsOptions,
  generated: string,
): ToolCaller {
  return async (callId, args, signal) => {
    // Without a call id there is nothing to repeat the call by, so a random key is safe.
    const key = await callKey(callId ?? crypto.randomUUID(), { given: options.run, generated });
    const outcome = await client.call(tool.name, args, { key, signal });
    if (outcome.kind === 'done') return outcome.result;
    if (options.errors === 'throw') throw new OncegateError(outcome);
    return { error: outcome.kind, message: explainOutcome(outcome) };
  };
}

/** Some frameworks take only text as a result. */
function toText(result: unknown): string {
  return typeof result === 'string' ? result : JSON.stringify(result);
}

/** Tools for the AI SDK (`ai`), by name. Pass its `jsonSchema`. */
export async function aiSdkTools<Schema>(
  client: OncegateClient,
  options: ToolsOptions & { readonly jsonSchema: (schema: never) => Schema },
) {
  const tools = (await loadTools(client, options)).map(({ name, description, input, call }) => [
    name,
    {
      type: 'dynamic' as const,
      description,
      inputSchema: options.jsonSchema(input as never),
      execute: (args: unknown, { toolCallId, abortSignal }: { toolCallId: string; abortSignal?: AbortSignal }) =>
        call(toolCallId, args, abortSignal),
    },
  ]);
  return Object.fromEntries(tools) as Record<string, never>;
}

/** Tools for the OpenAI Agents SDK (`@openai/agents`). Pass its `tool`. */
export async function openAiAgentsTools<Tool>(
  client: OncegateClient,
  options: ToolsOptions & { readonly tool: (definition: never) => Tool },
): Promise<Tool[]> {
  interface Details {
    readonly toolCall?: { readonly callId?: string };
    readonly signal?: AbortSignal;
  }
  return (await loadTools(client, options)).map(({ name, description, input, call }) =>
    options.tool({
      name,
      description,
      strict: false,
      parameters: { properties: {}, required: [], additionalProperties: true, ...input },
      execute: async (args: unknown, _context: unknown, details?: Details) =>
        toText(await call(details?.toolCall?.callId, args, details?.signal)),
      // Otherwise the framework would replace the error by its own text.
      ...(options.errors === 'throw' && { errorFunction: null }),
    } as never),
  );
}

/** Tools for LangChain.js (`@langchain/core/tools`). Pass its `tool`. */
export async function langChainTools<Tool>(
  client: OncegateClient,
  options: ToolsOptions & { readonly tool: (run: never, fields: never) => Tool },
): Promise<Tool[]> {
  interface Config {
    readonly toolCall?: { readonly id?: string };
    readonly signal?: AbortSignal;
  }
  return (await loadTools(client, options)).map(({ name, description, input, call }) => {
    const run = async (args: unknown, config?: Config) =>
      toText(await call(config?.toolCall?.id, args, config?.signal));
    return options.tool(run as never, { name, description, schema: input } as never);
  });
}

/** Tools for Mastra (`@mastra/core/tools`), by name. Pass its `createTool`. */
export async function mastraTools<Tool>(
  client: OncegateClient,
  options: ToolsOptions & { readonly createTool: (definition: never) => Tool },
): Promise<Record<string, Tool>> {
  interface Context {
    readonly agent?: { readonly toolCallId?: string };
    readonly abortSignal?: AbortSignal;
  }
  const tools = (await loadTools(client, options)).map(({ name, description, input, call }) => {
    const execute = (args: unknown, context?: Context) => call(context?.agent?.toolCallId, args, context?.abortSignal);
    return [name, options.createTool({ id: name, description, inputSchema: input, execute } as never)] as const;
  });
  return Object.fromEntries(tools);
}
