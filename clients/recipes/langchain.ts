import type { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { tool } from '@langchain/core/tools';
import { langChainTools, OncegateClient } from '@oncegate/client';
import { createAgent } from 'langchain';

const oncegate = new OncegateClient(); // uses ONCEGATE_URL and ONCEGATE_KEY

export async function answer(model: string | BaseChatModel, prompt: string): Promise<string> {
  const tools = await langChainTools(oncegate, { tool });
  const agent = createAgent({ model, tools });
  const { messages } = await agent.invoke({ messages: [{ role: 'user', content: prompt }] });
  return messages.at(-1)?.text ?? '';
}
