import { createInterface } from 'node:readline';

/** Only `y` and `yes` count as consent. */
export function isYes(answer: string | undefined): boolean {
  return /^y(?:es)?$/i.test(answer?.trim() ?? '');
}

/** Asks for a line on a terminal. Ctrl-D and Ctrl-C count as an empty answer. */
export function buildPrompt(
  input: NodeJS.ReadableStream,
  output: NodeJS.WritableStream,
): (question: string) => Promise<string> {
  return (question) =>
    new Promise((resolve) => {
      const lines = createInterface({ input, output });
      lines.once('close', () => resolve(''));
      lines.question(question, (answer) => {
        resolve(answer);
        lines.close();
      });
    });
}
