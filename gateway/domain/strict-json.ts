import { isUtf8 } from 'node:buffer';
import type { Json } from './json.ts';

/**
 * A JSON text that parsers could read in two ways. `JSON.parse` keeps the last of two equal keys, rounds 9007199254740993 and
 * reads 1e400 as Infinity, which is re-sent as null. Then the policy decides about other values than the caller wrote or the
 * upstream reads. So the parser refuses such texts, and the message says where and what to send instead.
 */
export class StrictJsonError extends Error {
  override readonly name = 'StrictJsonError';
}

const DEFAULT_MAX_DEPTH = 64;
/** The parser recurses once per level. This limit is far below the stack size, even deep inside a request. */
const MAX_DEPTH = 1000;

/** `maxDepth` counts nested objects and arrays: `[[1]]` has depth two. */
export function parseStrictJson(bytes: Buffer | string, limits: { maxDepth?: number } = {}): Json {
  const maxDepth = limits.maxDepth ?? DEFAULT_MAX_DEPTH;
  if (!(maxDepth >= 0 && maxDepth <= MAX_DEPTH)) throw new RangeError(`maxDepth must be 0 to ${MAX_DEPTH}`);
  return new StrictJsonParser(
    typeof bytes === 'string' ? requireWellFormed(bytes) : decodeUtf8(bytes),
    maxDepth,
  ).parseDocument();
}

function decodeUtf8(bytes: Buffer): string {
  const text = bytes.toString('utf8');
  if (isUtf8(bytes)) return text;
  // Decoding put U+FFFD at the first fault, so the text encoded again differs from there on.
  const reencoded = Buffer.from(text, 'utf8');
  let at = 0;
  while (at < bytes.length && bytes[at] === reencoded[at]) at++;
  throw new StrictJsonError(`near byte ${at}: not UTF-8; JSON is sent as UTF-8`);
}

/** A string can hold lone surrogates; text decoded from UTF-8 cannot. */
function requireWellFormed(text: string): string {
  // Every supported Node has `isWellFormed`, but the TypeScript library declares it only from es2024 on.
  if ((text as string & { isWellFormed(): boolean }).isWellFormed()) return text;
  const at = text.search(/\p{Surrogate}/u);
  throw new StrictJsonError(`${formatLineAndColumn(text, at)}: ${LONE_SURROGATE_MESSAGE}`);
}

const LONE_SURROGATE_MESSAGE = 'half a surrogate pair is no character; send both halves, high then low, or U+FFFD';
const EXPECTED_VALUES = 'an object, an array, a "double-quoted" string, a number, true, false or null';

const TAB = 0x09;
const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const SPACE = 0x20;
const QUOTE = 0x22;
const PLUS = 0x2b;
const COMMA = 0x2c;
const MINUS = 0x2d;
const POINT = 0x2e;
const ZERO = 0x30;
const NINE = 0x39;
const COLON = 0x3a;
const UPPER_E = 0x45;
const OPEN_BRACKET = 0x5b;
const BACKSLASH = 0x5c;
const CLOSE_BRACKET = 0x5d;
const LOWER_E = 0x65;
const LOWER_F = 0x66;
const LOWER_N = 0x6e;
const LOWER_T = 0x74;
const LOWER_U = 0x75;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

/** A decimal of at most 15 digits survives the round trip through a double, and digits / 10^n is correctly rounded. */
const MAX_EXACT_DIGITS = 15;
const POWERS_OF_TEN = Array.from({ length: MAX_EXACT_DIGITS + 1 }, (_, n) => 10 ** n);

/** Up to this many characters, a loop is faster than the regular expression. */
const MAX_CHARACTERWISE_SCAN = 32;
/** All characters except control characters, the quote and the backslash. */
const PLAIN_CHARACTERS = /[ !#-[\]-\uffff]*/y;

/** The end of the plain characters that start at `from`. */
function findEndOfPlain(text: string, from: number): number {
  PLAIN_CHARACTERS.lastIndex = from;
  PLAIN_CHARACTERS.test(text);
  return PLAIN_CHARACTERS.lastIndex;
}

/** Past the end, `charCodeAt` returns NaN. Every comparison with NaN is false, so the code needs no check for the end. */
class StrictJsonParser {
  private readonly text: string;
  private readonly maxDepth: number;
  private at = 0;
  private depth = 0;
  /** The current key or index at each level, for messages only; null before the first. */
  private readonly path: (string | number | null)[] = [];

  constructor(text: string, maxDepth: number) {
    this.text = text;
    this.maxDepth = maxDepth;
  }

  parseDocument(): Json {
    if (this.text.charCodeAt(0) === 0xfeff) this.fail('a byte order mark; send the JSON without it', 0);
    const value = this.parseValue(this.skipWhitespace());
    this.skipWhitespace();
    if (this.at < this.text.length)
      this.fail(`${this.describeFound()} after the end of the document; send one value only`);
    return value;
  }

  /** Skips white space and returns the next character code without consuming it. */
  private skipWhitespace(): number {
    const { text } = this;
    let { at } = this;
    let code = text.charCodeAt(at);
    if (code > SPACE) return code;
    while (code === SPACE || code === LINE_FEED || code === CARRIAGE_RETURN || code === TAB)
      code = text.charCodeAt(++at);
    this.at = at;
    return code;
  }

  private parseValue(code: number): Json {
    if (code === QUOTE) return this.parseString();
    if (code === OPEN_BRACE) return this.parseObject();
    if (code === OPEN_BRACKET) return this.parseArray();
    if (code === MINUS || (code >= ZERO && code <= NINE)) return this.parseNumber();
    if (code === LOWER_T && this.consumeWord('true')) return true;
    if (code === LOWER_F && this.consumeWord('false')) return false;
    if (code === LOWER_N && this.consumeWord('null')) return null;
    return this.fail(`${this.describeFound()} where a value is expected: ${EXPECTED_VALUES}`);
  }

  private consumeWord(word: string): boolean {
    if (!this.text.startsWith(word, this.at)) return false;
    this.at += word.length;
    return true;
  }

  private parseObject(): Json {
    const object: Record<string, Json> = {};
    const level = this.enterLevel();
    let code = this.skipWhitespace();
    if (code === CLOSE_BRACE) return this.leaveLevel(object);
    for (;;) {
      if (code !== QUOTE) this.fail(`${this.describeFound()} where a key is expected: a "double-quoted" string`);
      const keyAt = this.at;
      const key = this.parseString();
      this.path[level] = key;
      if (key === '__proto__') this.fail('the key "__proto__" is refused; choose another name', keyAt);
      // `hasOwn` excludes inherited names such as toString. The cheaper first test is false for almost every key.
      if (object[key] !== undefined && Object.hasOwn(object, key)) {
        this.fail(`the key ${quoteTruncated(key)} occurs twice; send each key once`, keyAt);
      }
      if (this.skipWhitespace() !== COLON) this.fail(`${this.describeFound()} where ":" is expected after the key`);
      this.at++;
      object[key] = this.parseValue(this.skipWhitespace());
      code = this.skipWhitespace();
      if (code === CLOSE_BRACE) return this.leaveLevel(object);
      if (code !== COMMA) this.fail(`${this.describeFound()} where "," or "}" is expected`);
      this.at++;
      code = this.skipWhitespace();
      if (code === CLOSE_BRACE) this.fail('a comma before "}"; leave out the last comma');
    }
  }

  private parseArray(): Json {
    const array: Json[] = [];
    const level = this.enterLevel();
    let code = this.skipWhitespace();
    if (code === CLOSE_BRACKET) return this.leaveLevel(array);
    for (;;) {
      this.path[level] = array.length;
      array.push(this.parseValue(code));
      code = this.skipWhitespace();
      if (code === CLOSE_BRACKET) return this.leaveLevel(array);
      if (code !== COMMA) this.fail(`${this.describeFound()} where "," or "]" is expected`);
      this.at++;
      code = this.skipWhitespace();
      if (code === CLOSE_BRACKET) this.fail('a comma before "]"; leave out the last comma');
    }
  }

  private enterLevel(): number {
    if (this.depth === this.maxDepth) this.fail(`nested deeper than ${this.maxDepth} levels; send a flatter value`);
    this.at++;
    this.path[this.depth] = null;
    return this.depth++;
  }

  private leaveLevel(value: Json): Json {
    this.at++;
    this.depth--;
    return value;
  }

  private parseString(): string {
    const { text } = this;
    const start = this.at + 1;
    const scanEnd = start + MAX_CHARACTERWISE_SCAN;
    let at = start;
    let code = text.charCodeAt(at);
    while (code >= SPACE && code !== QUOTE && code !== BACKSLASH && at < scanEnd) code = text.charCodeAt(++at);
    if (at === scanEnd) {
      at = findEndOfPlain(text, at);
      code = text.charCodeAt(at);
    }
    if (code === QUOTE) {
      this.at = at + 1;
      return text.slice(start, at);
    }
    return this.parseEscapedString(start, at);
  }

  /** Checks the rest of a string from its first character that is not plain, and lets V8 unescape the string. */
  private parseEscapedString(start: number, firstSpecial: number): string {
    const { text } = this;
    let at = firstSpecial;
    for (;;) {
      const code = text.charCodeAt(at);
      if (code === QUOTE) break;
      if (code === BACKSLASH) at = this.skipEscape(at);
      else if (code >= SPACE) at = findEndOfPlain(text, at);
      else if (at >= text.length) this.fail('the string never ends; close it with a double quote', start - 1);
      else this.fail(`a bare control character in a string; write it as ${formatUnicodeEscape(code)}`, at);
    }
    this.at = at + 1;
    return JSON.parse(text.slice(start - 1, at + 1)) as string;
  }

  /** Returns the end of the escape at `at`; for a surrogate pair, the end of both halves. */
  private skipEscape(at: number): number {
    const { text } = this;
    if (text.charCodeAt(at + 1) !== LOWER_U) {
      if (at + 1 < text.length && '"\\/bfnrt'.includes(text.charAt(at + 1))) return at + 2;
      this.fail('an unknown escape; JSON has \\" \\\\ \\/ \\b \\f \\n \\r \\t and \\uXXXX', at);
    }
    const unit = this.parseHexUnit(at);
    if (unit < 0xd800 || unit > 0xdfff) return at + 6;
    if (unit <= 0xdbff && text.startsWith('\\u', at + 6)) {
      const low = this.parseHexUnit(at + 6);
      if (low >= 0xdc00 && low <= 0xdfff) return at + 12;
    }
    return this.fail(LONE_SURROGATE_MESSAGE, at);
  }

  private parseHexUnit(at: number): number {
    const digits = this.text.slice(at + 2, at + 6);
    if (!/^[0-9a-fA-F]{4}$/.test(digits)) this.fail('an unfinished \\u escape; it takes four hexadecimal digits', at);
    return Number.parseInt(digits, 16);
  }

  private parseNumber(): number {
    const { text } = this;
    const start = this.at;
    const isNegative = text.charCodeAt(start) === MINUS;
    const first = isNegative ? start + 1 : start;
    let at = first;
    let digits = 0;
    let code = text.charCodeAt(at);
    while (code >= ZERO && code <= NINE) {
      digits = digits * 10 + (code - ZERO);
      code = text.charCodeAt(++at);
    }
    let count = at - first;
    if (count === 0) this.fail('a minus without a number; a digit must follow', at);
    if (count > 1 && text.charCodeAt(first) === ZERO)
      this.fail('a number with a leading zero; leave the zero out', first);
    let fraction = 0;
    if (code === POINT) {
      const afterPoint = ++at;
      code = text.charCodeAt(at);
      while (code >= ZERO && code <= NINE) {
        digits = digits * 10 + (code - ZERO);
        code = text.charCodeAt(++at);
      }
      fraction = at - afterPoint;
      if (fraction === 0) this.fail('a decimal point without digits; one must follow', at);
      count += fraction;
    }
    if (code === LOWER_E || code === UPPER_E) return this.parseExactNumber(start, this.skipExponent(at));
    if (count > MAX_EXACT_DIGITS) return this.parseExactNumber(start, at);
    this.at = at;
    const size = fraction === 0 ? digits : digits / (POWERS_OF_TEN[fraction] as number);
    return isNegative && size !== 0 ? -size : size;
  }

  private skipExponent(e: number): number {
    let at = e + 1;
    let code = this.text.charCodeAt(at);
    if (code === PLUS || code === MINUS) code = this.text.charCodeAt(++at);
    const first = at;
    while (code >= ZERO && code <= NINE) code = this.text.charCodeAt(++at);
    if (at === first) this.fail('an exponent without digits; one must follow', at);
    return at;
  }

  /** Policies and upstreams get a double, so a literal whose value differs from the double is refused. */
  private parseExactNumber(start: number, end: number): number {
    const literal = this.text.slice(start, end);
    const value = Number(literal);
    const size = Math.abs(value);
    const unsigned = literal.startsWith('-') ? literal.slice(1) : literal;
    if (size === Number.POSITIVE_INFINITY)
      this.fail(`the number ${truncate(literal)} is too large; send a string`, start);
    if (normalizeDecimal(unsigned) !== normalizeDecimal(String(size))) {
      const problem = `the number ${truncate(literal)} would be read as ${value}`;
      this.fail(`${problem}; send at most ${MAX_EXACT_DIGITS} significant digits, or a string`, start);
    }
    this.at = end;
    return size === 0 ? 0 : value;
  }

  private describeFound(): string {
    const point = this.text.codePointAt(this.at);
    return point === undefined ? 'the text ends' : `found ${quoteTruncated(String.fromCodePoint(point))}`;
  }

  private fail(problem: string, at = this.at): never {
    throw new StrictJsonError(
      `${formatPath(this.path, this.depth)} (${formatLineAndColumn(this.text, at)}): ${problem}`,
    );
  }
}

/**
 * The significant digits and the power of ten: equal decimals give equal strings. Uses plain loops, because `/0+$/` is
 * quadratic on long runs of zeros.
 */
function normalizeDecimal(unsigned: string): string {
  const e = unsigned.search(/[eE]/);
  const mantissa = e < 0 ? unsigned : unsigned.slice(0, e);
  const point = mantissa.indexOf('.');
  const digits = point < 0 ? mantissa : mantissa.slice(0, point) + mantissa.slice(point + 1);
  let first = 0;
  while (digits.charCodeAt(first) === ZERO) first++;
  if (first === digits.length) return '0';
  let end = digits.length;
  while (digits.charCodeAt(end - 1) === ZERO) end--;
  const power = (e < 0 ? 0 : Number(unsigned.slice(e + 1))) + (point < 0 ? digits.length : point) - end;
  return `${digits.slice(first, end)}e${power}`;
}

function formatLineAndColumn(text: string, at: number): string {
  let line = 1;
  let start = 0;
  for (let end = text.indexOf('\n'); end >= 0 && end < at; end = text.indexOf('\n', start)) {
    line++;
    start = end + 1;
  }
  return `line ${line}, column ${at - start + 1}`;
}

function formatPath(path: readonly (string | number | null)[], depth: number): string {
  let pointer = '$';
  for (const step of path.slice(0, depth)) {
    if (typeof step === 'number') pointer += `[${step}]`;
    else if (step !== null) pointer += /^[A-Za-z_]\w{0,39}$/.test(step) ? `.${step}` : `[${quoteTruncated(step)}]`;
  }
  return pointer;
}

function formatUnicodeEscape(code: number): string {
  return `\\u${code.toString(16).padStart(4, '0')}`;
}

function quoteTruncated(text: string): string {
  return JSON.stringify(truncate(text));
}

/** Messages go into answers and logs, so untrusted text must not make them long. */
function truncate(text: string): string {
  return text.length <= 40 ? text : `${text.slice(0, 39)}…`;
}
