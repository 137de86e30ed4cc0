import { OncegateClient, openAiAgentsTools } from '@oncegate/client';
import { Agent, type Model, run, tool } from '@openai/agents';

const oncegate = new OncegateClient(); // uses ONCEGATE_URL and ONCEGATE_KEY

export async function answer(model: string | Model, prompt: string): Promise<string> {
  const tools = await openAiAgentsTools(oncegate, { tool });
  const agent = new Agent({ name: 'assistant', instructions: 'Use the tools.', model, tools });
  const { finalOutput } = await run(agent, prompt);
  return finalOutput ?? '';
}
