import { MockLanguageModelV4 } from 'ai/test';
import { play, turn } from './script.mjs';

const none = { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0, text: 0, reasoning: 0 };

await play(
  process.argv[2],
  new MockLanguageModelV4({
    doGenerate: async ({ prompt }) => {
      const seen = prompt.flatMap(({ role, content }) =>
        role === 'tool' ? content.map(({ output }) => output.value) : [],
      );
      const { text, call } = turn(seen);
      const content =
        call === undefined
          ? { type: 'text', text }
          : { type: 'tool-call', toolCallId: call.id, toolName: call.name, input: JSON.stringify(call.args) };
      return {
        content: [content],
        finishReason: { unified: call === undefined ? 'stop' : 'tool-calls', raw: undefined },
        usage: { inputTokens: none, outputTokens: none },
        warnings: [],
      };
    },
  }),
);
