import { stringifyExact } from './exact-json.ts';
import type { Io } from './verb.ts';

const STYLES = { red: 31, green: 32, yellow: 33, bold: 1, dim: 2 } as const;

export type Style = keyof typeof STYLES;
export type Piece = string | { readonly text: string; readonly style: Style | undefined };

export interface Column {
  readonly title: string;
  /** May be cut to fit a terminal: a name, never a txn. */
  readonly cut?: boolean;
}

const GAP = '  ';
const LEAST_CUT = 6;

export function paint(style: Style | undefined, text: string): Piece {
  return { text, style };
}

/**
 * What a verb says. On a terminal: tables and colour, within its width. Anywhere else: plain lines, cells separated by
 * tabs, nothing cut. With `--json`: one JSON document, and the rest is silent.
 */
export class Output {
  readonly terminal: boolean;
  readonly width: number;
  readonly #io: Io;
  readonly #json: boolean;
  readonly #colour: boolean;

  constructor(io: Io, json: boolean) {
    this.#io = io;
    this.#json = json;
    this.terminal = io.isTty && !json;
    this.width = Math.max(40, io.stdout.columns || 80);
    this.#colour = this.terminal && !io.env['NO_COLOR'] && io.env['TERM'] !== 'dumb';
  }

  line(...pieces: readonly Piece[]): void {
    if (!this.#json) this.#io.stdout.write(`${this.#render(pieces)}\n`);
  }

  /** For a person only, beside what was asked for. */
  note(text: string): void {
    if (!this.#json) this.#io.stderr.write(`${text.split('\n').map(clean).join('\n')}\n`);
  }

  json(value: unknown): void {
    if (this.#json) this.#io.stdout.write(`${stringifyExact(value)}\n`);
  }

  /** Cells for a program: one line, separated by tabs that stand nowhere else. */
  row(cells: readonly Piece[]): void {
    this.line(cells.map((cell) => clean(textOf(cell))).join('\t'));
  }

  table(columns: readonly Column[], rows: readonly (readonly Piece[])[]): void {
    if (!this.terminal) {
      for (const row of rows) this.row(row);
      return;
    }
    const widths = widthsOf(columns, rows, this.width);
    const write = (cells: readonly Piece[], style?: Style): void => {
      const padded = cells.flatMap((cell, index): Piece[] => {
        const width = widths[index] ?? 0;
        const text = cut(clean(textOf(cell)), width);
        const filler = index === cells.length - 1 ? '' : ' '.repeat(width - text.length) + GAP;
        return [paint(style ?? styleOf(cell), text), filler];
      });
      this.line(...padded);
    };
    write(
      columns.map(({ title }) => title),
      'dim',
    );
    for (const row of rows) write(row);
  }

  /** Names and values below one another; on a terminal long values are wrapped. */
  fields(pairs: readonly (readonly [string, Piece])[]): void {
    const indent = Math.max(...pairs.map(([name]) => name.length)) + GAP.length;
    for (const [name, value] of pairs) {
      if (!this.terminal) {
        this.line(`${name}\t${clean(textOf(value))}`);
        continue;
      }
      const lines = wrap(textOf(value), this.width - indent);
      for (const [index, text] of lines.entries()) {
        this.line(paint('dim', (index === 0 ? name : '').padEnd(indent)), paint(styleOf(value), text));
      }
    }
  }

  /** Behind a mark; on a terminal wrapped, with only the branches of the mark before further lines. */
  hang(mark: readonly Piece[], value: Piece): void {
    const text = mark.map(textOf).join('');
    const lines = this.terminal ? wrap(textOf(value), this.width - text.length) : [clean(textOf(value))];
    for (const [index, line] of lines.entries())
      this.line(...(index === 0 ? mark : [text.replaceAll(/[^│]/g, ' ')]), paint(styleOf(value), line));
  }

  #render(pieces: readonly Piece[]): string {
    return pieces
      .map((piece) => {
        const style = styleOf(piece);
        // Tabs separate cells and stand nowhere else: what goes in was cleaned cell by cell.
        const text = textOf(piece).split('\t').map(clean).join('\t');
        return this.#colour && style !== undefined ? `\u001b[${STYLES[style]}m${text}\u001b[0m` : text;
      })
      .join('');
  }
}

/** What agents and upstreams wrote must not move the cursor, colour the screen or hide behind invisible characters. */
export function clean(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu, (character) => {
    if (character === '\n' || character === '\t') return ' ';
    return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
  });
}

export function wrap(text: string, width: number): string[] {
  return text.split('\n').flatMap((line) => {
    const lines: string[] = [];
    let rest = clean(line);
    while (rest.length > width) {
      const space = rest.lastIndexOf(' ', width);
      const end = space > width / 2 ? space : width;
      lines.push(rest.slice(0, end));
      rest = rest.slice(end).trimStart();
    }
    return [...lines, rest];
  });
}

function widthsOf(columns: readonly Column[], rows: readonly (readonly Piece[])[], most: number): number[] {
  const widths = columns.map(({ title }, index) =>
    rows.reduce((widest, row) => Math.max(widest, clean(textOf(row[index] ?? '')).length), title.length),
  );
  let excess = widths.reduce((sum, width) => sum + width, GAP.length * (columns.length - 1)) - most;
  while (excess > 0) {
    const widest = columns.reduce((best, { cut }, index) => {
      if (!cut || (widths[index] ?? 0) <= LEAST_CUT) return best;
      return best < 0 || (widths[index] ?? 0) > (widths[best] ?? 0) ? index : best;
    }, -1);
    if (widest < 0) break;
    widths[widest] = (widths[widest] ?? 0) - 1;
    excess--;
  }
  return widths;
}

function cut(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`;
}

function textOf(piece: Piece): string {
  return typeof piece === 'string' ? piece : piece.text;
}

function styleOf(piece: Piece): Style | undefined {
  return typeof piece === 'string' ? undefined : piece.style;
}
