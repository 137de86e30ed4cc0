import { createMCPClient } from '@ai-sdk/mcp';
import { generateText, isStepCount, type LanguageModel } from 'ai';

export async function answer(model: LanguageModel, prompt: string): Promise<string> {
  const mcp = await createMCPClient({
    transport: {
      type: 'http',
      url: `${process.env.ONCEGATE_URL}/mcp`,
      headers: { authorization: `Bearer ${process.env.ONCEGATE_KEY}` },
    },
  });
  try {
    const { text } = await generateText({ model, prompt, tools: await mcp.tools(), stopWhen: isStepCount(10) });
    return text;
  } finally {
    await mcp.close();
  }
}
