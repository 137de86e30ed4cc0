import type { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { MultiServerMCPClient } from '@langchain/mcp-adapters';
import { createAgent } from 'langchain';

export async function answer(model: string | BaseChatModel, prompt: string): Promise<string> {
  const mcp = new MultiServerMCPClient({
    mcpServers: {
      oncegate: {
        transport: 'http',
        url: `${process.env.ONCEGATE_URL}/mcp`,
        headers: { authorization: `Bearer ${process.env.ONCEGATE_KEY}` },
      },
    },
  });
  try {
    const agent = createAgent({ model, tools: await mcp.getTools() });
    const { messages } = await agent.invoke({ messages: [{ role: 'user', content: prompt }] });
    return messages.at(-1)?.text ?? '';
  } finally {
    await mcp.close();
  }
}
