import { createInterface } from 'node:readline';

/** Nothing else than a clear yes is one. */
export function isYes(answer: string | undefined): boolean {
  return /^y(?:es)?$/i.test(answer?.trim() ?? '');
}

/** Asks for a line at a terminal. Whoever ends the input instead (Ctrl-D, Ctrl-C) has answered nothing. */
export function askAt(
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
