import { Agent } from '@mastra/core/agent';
import type { MastraModelConfig } from '@mastra/core/llm';
import { createTool } from '@mastra/core/tools';
import { mastraTools, OncegateClient } from '@oncegate/client';

const oncegate = new OncegateClient(); // uses ONCEGATE_URL and ONCEGATE_KEY

export async function answer(model: MastraModelConfig, prompt: string): Promise<string> {
  const tools = await mastraTools(oncegate, { createTool });
  const agent = new Agent({ id: 'assistant', name: 'assistant', instructions: 'Use the tools.', model, tools });
  const { text } = await agent.generate(prompt, { maxSteps: 10 });
  return text;
}
