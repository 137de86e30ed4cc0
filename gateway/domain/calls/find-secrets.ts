/** A range of a text, without its end. */
export interface TextRange {
  readonly start: number;
  readonly end: number;
}

/** Returns the disjoint ranges of secrets in a text, in order; undefined when the search takes too long. */
export type SecretFinder = (text: string) => TextRange[] | undefined;

/** Up to this many secrets, `includes` of V8 is faster at finding that a text contains none. */
const MAX_SECRETS_FOR_INCLUDES = 64;

/**
 * The limit of steps per character. Ordinary texts take one or two. A text that nearly matches at every index, such as `aaa…`
 * for the secret `aaa…b`, would take one step per character of the secret, and block the event loop.
 */
const MAX_STEPS_PER_UNIT = 16;

/**
 * Finds any number of secrets of any length in one pass over a text, also where JSON escapes them: `\/` and `\u002f` are
 * slashes. A regular expression would not do, because V8 refuses long ones with an error that quotes them.
 */
export function buildSecretFinder(secrets: readonly string[]): SecretFinder {
  const sorted = [...new Set(secrets)].filter((secret) => secret !== '').sort();
  if (sorted.length === 0) return () => [];
  const root = buildRadixTree(sorted);
  const starts = buildFirstUnitTable(sorted);
  return (text) => {
    const isEscaped = text.includes('\\');
    if (!isEscaped && sorted.length <= MAX_SECRETS_FOR_INCLUDES && !sorted.some((secret) => text.includes(secret)))
      return [];
    return findRanges(text, root, starts, isEscaped);
  };
}

/** A node of a radix tree: all secrets with a common prefix. */
interface RadixNode {
  /** One of the secrets. Up to `until`, all of them are equal. */
  readonly example: string;
  readonly until: number;
  /** Whether a secret ends at `until`. */
  readonly isWhole: boolean;
  /** The children, by the next code unit. */
  readonly children: ReadonlyMap<number, RadixNode>;
}

/** A child still to be built: the secrets from `low` to before `high`, which are equal up to `depth`. */
interface PendingNode {
  readonly low: number;
  readonly high: number;
  readonly depth: number;
  /** The key of the child in `siblings`. */
  readonly unit: number;
  readonly siblings: Map<number, RadixNode>;
}

/** Expects sorted, distinct secrets. Uses a stack instead of recursion: `a`, `aa`, `aaa`… branch at every character. */
function buildRadixTree(sorted: readonly string[]): RadixNode {
  const top = new Map<number, RadixNode>();
  const pending: PendingNode[] = [{ low: 0, high: sorted.length, depth: 0, unit: 0, siblings: top }];
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const { low, high, depth } = next;
    const first = sorted[low] as string;
    const last = sorted[high - 1] as string;
    let until = depth;
    while (until < first.length && first.charCodeAt(until) === last.charCodeAt(until)) until++;
    const isWhole = first.length === until;
    const children = new Map<number, RadixNode>();
    next.siblings.set(next.unit, { example: first, until, isWhole, children });
    for (let from = isWhole ? low + 1 : low, to = from; from < high; from = to) {
      const unit = (sorted[from] as string).charCodeAt(until);
      while (to < high && (sorted[to] as string).charCodeAt(until) === unit) to++;
      pending.push({ low: from, high: to, depth: until, unit, siblings: children });
    }
  }
  return top.get(0) as RadixNode;
}

/** For the low byte of a code unit: whether a secret may start with it. Most characters of most texts need no more checks. */
function buildFirstUnitTable(secrets: readonly string[]): Uint8Array {
  const starts = new Uint8Array(LOW_BYTE_MASK + 1);
  for (const secret of secrets) starts[secret.charCodeAt(0) & LOW_BYTE_MASK] = 1;
  // An escape can encode the first character of any secret.
  starts[BACKSLASH] = 1;
  return starts;
}

function findRanges(text: string, root: RadixNode, starts: Uint8Array, isEscaped: boolean): TextRange[] | undefined {
  const ranges: { start: number; end: number }[] = [];
  const match: MatchResult = { end: 0, steps: 0 };
  let stepsLeft = MAX_STEPS_PER_UNIT * text.length;
  let stepsLeftInside = stepsLeft;
  for (let at = 0; at < text.length; at++) {
    if (starts[text.charCodeAt(at) & LOW_BYTE_MASK] === 0) continue;
    const last = ranges.at(-1);
    const isInside = last !== undefined && at < last.end;
    // An overlapping secret extends the range, within a limit: `aaaa` matches at every index of `aaaa…`.
    if (isInside && stepsLeftInside < 0) {
      at = last.end - 1;
      continue;
    }
    matchAt(match, text, at, root, isEscaped);
    if (isInside) {
      stepsLeftInside -= match.steps;
      if (match.end > last.end) last.end = match.end;
      continue;
    }
    stepsLeft -= match.steps;
    if (stepsLeft < 0) return undefined;
    if (match.end > 0) ranges.push({ start: at, end: match.end });
  }
  return ranges;
}

/** The end of the longest secret that starts at an index, 0 if none does, and the number of steps. Reused to avoid allocation. */
interface MatchResult {
  end: number;
  steps: number;
}

/** Matches a text with backslashes both literally and as JSON. No writer mixes the two within one secret. */
function matchAt(match: MatchResult, text: string, from: number, root: RadixNode, isEscaped: boolean): void {
  match.end = 0;
  match.steps = 0;
  matchEncodedAt(match, text, from, root, false);
  if (isEscaped) matchEncodedAt(match, text, from, root, true);
}

function matchEncodedAt(match: MatchResult, text: string, from: number, root: RadixNode, asJson: boolean): void {
  let node = root;
  let at = from;
  for (let depth = 0; ; ) {
    for (; depth < node.until; depth++) {
      match.steps += 1;
      const read = readUnit(text, at, asJson);
      if ((read & UNIT_MASK) !== node.example.charCodeAt(depth) || at >= text.length) return;
      at += read >> UNIT_BITS;
    }
    if (node.isWhole && at > match.end) match.end = at;
    match.steps += 1;
    const child = at < text.length ? node.children.get(readUnit(text, at, asJson) & UNIT_MASK) : undefined;
    if (child === undefined) return;
    node = child;
  }
}

const UNIT_BITS = 16;
const UNIT_MASK = 0xffff;
const LOW_BYTE_MASK = 0xff;
const BACKSLASH = 0x5c;
const LETTER_U = 0x75;

/** The JSON escapes of a backslash and one character. */
const SHORT_ESCAPES = new Map(
  Object.entries({ '"': '"', '\\': '\\', '/': '/', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }).map(
    ([letter, decoded]) => [letter.charCodeAt(0), decoded.charCodeAt(0)],
  ),
);

/** Returns the code unit at an index in the low 16 bits, and the number of characters that encode it in the bits above. */
function readUnit(text: string, at: number, asJson: boolean): number {
  const unit = text.charCodeAt(at);
  if (!asJson || unit !== BACKSLASH) return (1 << UNIT_BITS) | unit;
  const next = text.charCodeAt(at + 1);
  if (next === LETTER_U) {
    const decoded = parseHex4(text, at + 2);
    return decoded === undefined ? (1 << UNIT_BITS) | unit : (6 << UNIT_BITS) | decoded;
  }
  const decoded = SHORT_ESCAPES.get(next);
  return decoded === undefined ? (1 << UNIT_BITS) | unit : (2 << UNIT_BITS) | decoded;
}

function parseHex4(text: string, from: number): number | undefined {
  let value = 0;
  for (let at = from; at < from + 4; at++) {
    const digit = parseHexDigit(text.charCodeAt(at));
    if (digit === undefined) return undefined;
    value = value * 16 + digit;
  }
  return value;
}

function parseHexDigit(unit: number): number | undefined {
  if (unit >= 0x30 && unit <= 0x39) return unit - 0x30;
  const letter = unit | 0x20;
  return letter >= 0x61 && letter <= 0x66 ? letter - 0x57 : undefined;
}
