import { setTracingDisabled, Usage } from '@openai/agents';
import { play, shown, turn } from './script.mjs';

setTracingDisabled(true);

await play(process.argv[2], {
  async getResponse({ input }) {
    const results = input.filter(({ type }) => type === 'function_call_result');
    const { text, call } = turn(results.map(({ output }) => shown(output.text ?? output)));
    const message = {
      type: 'message',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text }],
    };
    const wish = () => ({
      type: 'function_call',
      callId: call.id,
      name: call.name,
      arguments: JSON.stringify(call.args),
      status: 'completed',
    });
    return { usage: new Usage(), output: [call === undefined ? message : wish()] };
  },
  getStreamedResponse() {
    throw new Error('the recipes do not stream');
  },
});
