import { Agent, MCPServerStreamableHttp, type Model, run } from '@openai/agents';

export async function answer(model: string | Model, prompt: string): Promise<string> {
  const oncegate = new MCPServerStreamableHttp({
    name: 'oncegate',
    url: `${process.env.ONCEGATE_URL}/mcp`,
    requestInit: { headers: { authorization: `Bearer ${process.env.ONCEGATE_KEY}` } },
  });
  await oncegate.connect();
  try {
    const agent = new Agent({ name: 'assistant', instructions: 'Use the tools.', model, mcpServers: [oncegate] });
    const { finalOutput } = await run(agent, prompt);
    return finalOutput ?? '';
  } finally {
    await oncegate.close();
  }
}
