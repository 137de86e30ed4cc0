import { stringifyExact } from './exact-json.ts';
import type { Io } from './verb.ts';

const STYLES = { red: 31, green: 32, yellow: 33, bold: 1, dim: 2 } as const;

export type Style = keyof typeof STYLES;
export type StyledText = string | { readonly text: string; readonly style: Style | undefined };

export interface TableColumn {
  readonly title: string;
  /** The column may be shortened to fit a terminal: set for names, never for a txn. */
  readonly canTruncate?: boolean;
}

const GAP = '  ';
const MIN_TRUNCATED_WIDTH = 6;

export function paint(style: Style | undefined, text: string): StyledText {
  return { text, style };
}

/**
 * Prints the output of a verb. On a terminal: tables and colour, within its width. Elsewhere: plain lines with cells
 * separated by tabs, nothing shortened. With `--json`: one JSON document and nothing else.
 */
export class Output {
  readonly isTerminal: boolean;
  readonly width: number;
  readonly #io: Io;
  readonly #isJson: boolean;
  readonly #hasColour: boolean;

  constructor(io: Io, isJson: boolean) {
    this.#io = io;
    this.#isJson = isJson;
    this.isTerminal = io.isTty && !isJson;
    this.width = Math.max(40, io.stdout.columns || 80);
    this.#hasColour = this.isTerminal && !io.env['NO_COLOR'] && io.env['TERM'] !== 'dumb';
  }

  printLine(...pieces: readonly StyledText[]): void {
    if (!this.#isJson) this.#io.stdout.write(`${this.#render(pieces)}\n`);
  }

  /** Prints a note for a person to standard error; on a terminal wraps it between words. */
  printNote(text: string): void {
    if (this.#isJson) return;
    const lines = text.split('\n').map(escapeControls);
    const wrapped = this.isTerminal ? lines.flatMap((line) => wrapWords(line, this.width)) : lines;
    this.#io.stderr.write(`${wrapped.join('\n')}\n`);
  }

  printJson(value: unknown): void {
    if (this.#isJson) this.#io.stdout.write(`${stringifyExact(value)}\n`);
  }

  /** Prints one line of cells for a program. Tabs separate the cells and occur nowhere else. */
  printRow(cells: readonly StyledText[]): void {
    this.printLine(cells.map((cell) => escapeControls(pieceText(cell))).join('\t'));
  }

  printTable(columns: readonly TableColumn[], rows: readonly (readonly StyledText[])[]): void {
    if (!this.isTerminal) {
      for (const row of rows) this.printRow(row);
      return;
    }
    const widths = computeWidths(columns, rows, this.width);
    const write = (cells: readonly StyledText[], style?: Style): void => {
      const padded = cells.flatMap((cell, index): StyledText[] => {
        const width = widths[index] ?? 0;
        const text = truncate(escapeControls(pieceText(cell)), width);
        const filler = index === cells.length - 1 ? '' : ' '.repeat(width - text.length) + GAP;
        return [paint(style ?? pieceStyle(cell), text), filler];
      });
      this.printLine(...padded);
    };
    write(
      columns.map(({ title }) => title),
      'dim',
    );
    for (const row of rows) write(row);
  }

  /** Prints one name and value per line; on a terminal wraps long values. */
  printFields(pairs: readonly (readonly [string, StyledText])[]): void {
    const indent = Math.max(...pairs.map(([name]) => name.length)) + GAP.length;
    for (const [name, value] of pairs) {
      if (!this.isTerminal) {
        this.printLine(`${name}\t${escapeControls(pieceText(value))}`);
        continue;
      }
      const lines = wrapText(pieceText(value), this.width - indent);
      for (const [index, text] of lines.entries()) {
        this.printLine(paint('dim', (index === 0 ? name : '').padEnd(indent)), paint(pieceStyle(value), text));
      }
    }
  }

  /** Prints a value after a mark. On a terminal wraps it, and repeats only the `│` of the mark on further lines. */
  printHanging(mark: readonly StyledText[], value: StyledText): void {
    const text = mark.map(pieceText).join('');
    const lines = this.isTerminal
      ? wrapText(pieceText(value), this.width - text.length)
      : [escapeControls(pieceText(value))];
    for (const [index, line] of lines.entries())
      this.printLine(...(index === 0 ? mark : [text.replaceAll(/[^│]/g, ' ')]), paint(pieceStyle(value), line));
  }

  #render(pieces: readonly StyledText[]): string {
    return pieces
      .map((piece) => {
        const style = pieceStyle(piece);
        // Keep the tabs between cells; escape everything else.
        const text = pieceText(piece).split('\t').map(escapeControls).join('\t');
        return this.#hasColour && style !== undefined ? `\u001b[${STYLES[style]}m${text}\u001b[0m` : text;
      })
      .join('');
  }
}

/** Escapes control and invisible characters, so that text of an agent or upstream cannot change the terminal. */
export function escapeControls(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu, (character) => {
    if (character === '\n' || character === '\t') return ' ';
    return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
  });
}

/** Breaks lines only at spaces, so that a long key or URL can be copied. */
function wrapWords(line: string, width: number): string[] {
  const lines: string[] = [];
  let rest = line;
  while (rest.length > width) {
    const indent = rest.length - rest.trimStart().length;
    const before = rest.lastIndexOf(' ', width);
    const end = before > indent ? before : rest.indexOf(' ', width);
    if (end < 0) break;
    lines.push(rest.slice(0, end));
    rest = rest.slice(end + 1);
  }
  return [...lines, rest];
}

export function wrapText(text: string, width: number): string[] {
  return text.split('\n').flatMap((line) => {
    const lines: string[] = [];
    let rest = escapeControls(line);
    while (rest.length > width) {
      const space = rest.lastIndexOf(' ', width);
      const end = space > width / 2 ? space : width;
      lines.push(rest.slice(0, end));
      rest = rest.slice(end).trimStart();
    }
    return [...lines, rest];
  });
}

function computeWidths(
  columns: readonly TableColumn[],
  rows: readonly (readonly StyledText[])[],
  maxWidth: number,
): number[] {
  const widths = columns.map(({ title }, index) =>
    rows.reduce((widest, row) => Math.max(widest, escapeControls(pieceText(row[index] ?? '')).length), title.length),
  );
  let excess = widths.reduce((sum, width) => sum + width, GAP.length * (columns.length - 1)) - maxWidth;
  while (excess > 0) {
    const widest = columns.reduce((best, { canTruncate }, index) => {
      if (!canTruncate || (widths[index] ?? 0) <= MIN_TRUNCATED_WIDTH) return best;
      return best < 0 || (widths[index] ?? 0) > (widths[best] ?? 0) ? index : best;
    }, -1);
    if (widest < 0) break;
    widths[widest] = (widths[widest] ?? 0) - 1;
    excess--;
  }
  return widths;
}

function truncate(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`;
}

function pieceText(piece: StyledText): string {
  return typeof piece === 'string' ? piece : piece.text;
}

function pieceStyle(piece: StyledText): Style | undefined {
  return typeof piece === 'string' ? undefined : piece.style;
}
