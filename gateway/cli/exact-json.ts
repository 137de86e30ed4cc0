import { randomBytes } from 'node:crypto';

/**
 * JSON whose numbers stay as they were written. An upstream's id 9007199254740993 read by `JSON.parse` is shown as
 * …992: then somebody who answers a doubt looks up the wrong charge. Such numbers travel as marked strings, and nobody
 * outside this process can know the mark.
 */
const MARK = `number:${randomBytes(12).toString('hex')}:`;
const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, 'g');

/** Throws a SyntaxError as `JSON.parse` does. */
export function parseExact(text: string): unknown {
  const marked = text.replace(STRING_OR_NUMBER, (token) => {
    if (token.startsWith('"') || String(Number(token)) === token || !isNumber(token)) return token;
    return `"${MARK}${token}"`;
  });
  return JSON.parse(marked);
}

export function stringifyExact(value: unknown, indent: number = 2): string {
  return JSON.stringify(value, null, indent).replace(MARKED, '$1');
}

function isNumber(token: string): boolean {
  return /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(token);
}
