import { MockLanguageModelV4 } from 'ai/test';
import { nextTurn, runRecipe } from './script.mjs';

const NO_TOKENS = { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0, text: 0, reasoning: 0 };

await runRecipe(
  process.argv[2],
  new MockLanguageModelV4({
    doGenerate: async ({ prompt }) => {
      const seen = prompt.flatMap(({ role, content }) =>
        role === 'tool' ? content.map(({ output }) => output.value) : [],
      );
      const { text, call } = nextTurn(seen);
      const content =
        call === undefined
          ? { type: 'text', text }
          : { type: 'tool-call', toolCallId: call.id, toolName: call.name, input: JSON.stringify(call.args) };
      return {
        content: [content],
        finishReason: { unified: call === undefined ? 'stop' : 'tool-calls', raw: undefined },
        usage: { inputTokens: NO_TOKENS, outputTokens: NO_TOKENS },
        warnings: [],
      };
    },
  }),
);
