import { Agent } from '@mastra/core/agent';
import type { MastraModelConfig } from '@mastra/core/llm';
import { MCPClient } from '@mastra/mcp';

export async function answer(model: MastraModelConfig, prompt: string): Promise<string> {
  const mcp = new MCPClient({
    servers: {
      oncegate: {
        url: new URL(`${process.env.ONCEGATE_URL}/mcp`),
        requestInit: { headers: { authorization: `Bearer ${process.env.ONCEGATE_KEY}` } },
      },
    },
  });
  try {
    const tools = await mcp.listTools();
    const agent = new Agent({ id: 'assistant', name: 'assistant', instructions: 'Use the tools.', model, tools });
    const { text } = await agent.generate(prompt, { maxSteps: 10 });
    return text;
  } finally {
    await mcp.disconnect();
  }
}
