import { query } from '@anthropic-ai/claude-agent-sdk';

export async function answer(prompt: string): Promise<string> {
  const messages = query({
    prompt,
    options: {
      mcpServers: {
        oncegate: {
          type: 'http',
          url: `${process.env.ONCEGATE_URL}/mcp`,
          headers: { authorization: `Bearer ${process.env.ONCEGATE_KEY}` },
        },
      },
      allowedTools: ['mcp__oncegate__*'],
    },
  });
  for await (const message of messages) {
    if (message.type === 'result' && message.subtype === 'success') return message.result;
  }
  throw new Error('The agent ended without a result.');
}
