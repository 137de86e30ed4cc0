const WIDTH = 80;

const STYLES = { bold: 1, red: 31, green: 32, cyan: 36 } as const;

/** Prints the scenarios in 80 columns, with colour only on a terminal. */
export class TerminalPrinter {
  readonly #write: (text: string) => void;
  readonly #colour: boolean;

  constructor(out: { write(text: string): unknown; readonly isTTY?: boolean }, env: NodeJS.ProcessEnv) {
    this.#write = (text) => void out.write(`${text}\n`);
    this.#colour = out.isTTY === true && !env['NO_COLOR'];
  }

  printTitle(text: string): void {
    this.#write(this.#paint('bold', text));
  }

  printHeading(number: number, title: string): void {
    this.#write('');
    this.#write(this.#paint('bold', `${number}. ${title}`));
  }

  printText(text: string): void {
    this.#write(wrap(text, '   ').join('\n'));
  }

  printRequest(text: string): void {
    this.#printMarked('>', 'cyan', text);
  }

  printAnswer(text: string): void {
    this.#printMarked('<', 'cyan', text);
  }

  /** Prints one item of an answer. */
  printItem(text: string): void {
    this.#printMarked('·', 'cyan', text);
  }

  printVerified(text: string): void {
    this.#printMarked('✓', 'green', text);
  }

  printFailure(text: string): void {
    this.#printMarked('✗', 'red', text);
  }

  #printMarked(mark: string, style: keyof typeof STYLES, text: string): void {
    const [first = '', ...rest] = wrap(text, '     ');
    this.#write([`   ${this.#paint(style, mark)} ${first.trimStart()}`, ...rest].join('\n'));
  }

  #paint(style: keyof typeof STYLES, text: string): string {
    return this.#colour ? `\u001b[${STYLES[style]}m${text}\u001b[0m` : text;
  }
}

/** Breaks text into lines of at most 80 columns; a longer word gets its own line. */
function wrap(text: string, indent: string): string[] {
  const lines: string[] = [];
  let line = indent;
  for (const word of text.split(/\s+/)) {
    const longer = line === indent ? line + word : `${line} ${word}`;
    if (longer.length > WIDTH && line !== indent) {
      lines.push(line);
      line = indent + word;
    } else line = longer;
  }
  return [...lines, line];
}
