import { setTracingDisabled, Usage } from '@openai/agents';
import { nextTurn, parseResult, runRecipe } from './script.mjs';

setTracingDisabled(true);

await runRecipe(process.argv[2], {
  async getResponse({ input }) {
    const results = input.filter(({ type }) => type === 'function_call_result');
    const { text, call } = nextTurn(results.map(({ output }) => parseResult(output.text ?? output)));
    const message = {
      type: 'message',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text }],
    };
    const functionCall = () => ({
      type: 'function_call',
      callId: call.id,
      name: call.name,
      arguments: JSON.stringify(call.args),
      status: 'completed',
    });
    return { usage: new Usage(), output: [call === undefined ? message : functionCall()] };
  },
  getStreamedResponse() {
    throw new Error('The scripted model does not stream, because no recipe does.');
  },
});
