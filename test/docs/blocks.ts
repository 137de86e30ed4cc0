import { readdir, readFile } from 'node:fs/promises';

/** A fenced code block of a page. */
export interface Block {
  readonly page: string;
  /** The line of the opening fence, counted from 1. */
  readonly line: number;
  /** The first word after the fence: `sh`, `yaml`, `json`, … */
  readonly language: string;
  /** The rest of the fence's line: `manual`, `config`, `test`, `part=rule`, `status=403`, or nothing. */
  readonly mark: string;
  readonly text: string;
  /** The heading above the block. */
  readonly heading: string;
}

export const formatLocation = ({ page, line }: Block) => `${page}:${line}`;

/** README.md and every page below docs/, in the order in which a newcomer reads them. */
export async function listPages(): Promise<string[]> {
  const files = await readdir('docs', { recursive: true });
  const pages = files.filter((file) => file.endsWith('.md')).map((file) => `docs/${file.replaceAll('\\', '/')}`);
  const order = ['docs/tutorials/quick-start.md', 'docs/tutorials/', 'docs/guides/', 'docs/'];
  const rank = (page: string) => order.findIndex((prefix) => page.startsWith(prefix));
  return ['README.md', ...pages.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1))];
}

export async function readBlocks(page: string): Promise<Block[]> {
  const blocks: Block[] = [];
  let heading = '';
  let open: { line: number; indent: number; info: string; lines: string[] } | undefined;
  for (const [index, line] of (await readFile(page, 'utf8')).split('\n').entries()) {
    const fence = /^( *)```(.*)$/.exec(line);
    if (fence === null) {
      if (open !== undefined) open.lines.push(line.slice(Math.min(open.indent, line.search(/\S|$/))));
      else if (line.startsWith('#')) heading = line;
    } else if (open === undefined) {
      open = { line: index + 1, indent: fence[1]?.length ?? 0, info: fence[2]?.trim() ?? '', lines: [] };
    } else {
      const [language = '', ...mark] = open.info.split(' ');
      const text = open.lines.map((each) => `${each}\n`).join('');
      blocks.push({ page, line: open.line, language, mark: mark.join(' '), text, heading });
      open = undefined;
    }
  }
  if (open !== undefined) throw new Error(`${page}:${open.line}: The block is not closed.`);
  return blocks;
}
