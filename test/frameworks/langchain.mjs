import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessage } from '@langchain/core/messages';
import { nextTurn, parseResult, runRecipe } from './script.mjs';

class ScriptedModel extends BaseChatModel {
  _llmType() {
    return 'scripted';
  }

  bindTools() {
    return this;
  }

  async _generate(messages) {
    const results = messages.filter((message) => message.getType() === 'tool');
    const { text, call } = nextTurn(results.map(({ text }) => parseResult(text)));
    const message =
      call === undefined
        ? new AIMessage(text)
        : new AIMessage({ content: '', tool_calls: [{ ...call, type: 'tool_call' }] });
    return { generations: [{ text: text ?? '', message }] };
  }
}

await runRecipe(process.argv[2], new ScriptedModel({}));
