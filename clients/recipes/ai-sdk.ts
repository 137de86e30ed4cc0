import { aiSdkTools, OncegateClient } from '@oncegate/client';
import { generateText, isStepCount, jsonSchema, type LanguageModel } from 'ai';

const oncegate = new OncegateClient(); // uses ONCEGATE_URL and ONCEGATE_KEY

export async function answer(model: LanguageModel, prompt: string): Promise<string> {
  const tools = await aiSdkTools(oncegate, { jsonSchema });
  const { text } = await generateText({ model, prompt, tools, stopWhen: isStepCount(10) });
  return text;
}
