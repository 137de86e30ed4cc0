import { randomBytes } from 'node:crypto';

/**
 * Parses and prints JSON without changing its numbers. `JSON.parse` turns the id 9007199254740993 into …992, and a person
 * who resolves a doubt would look up the wrong charge. Such numbers are held as strings with a random mark, which no
 * server can guess.
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
