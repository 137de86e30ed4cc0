/** A stretch of a text, its end not included. */
export interface TextRange {
  readonly start: number;
  readonly end: number;
}

/** Where secrets stand in a text, in order and apart; undefined when it takes too long to tell. */
export type SecretFinder = (text: string) => TextRange[] | undefined;

/** Of so few, V8 tells faster than we whether any is there. */
const MAX_SECRETS_FOR_INCLUDES = 64;

/**
 * Steps for each character of a text. Ordinary texts take one or two; a text that is nearly the secret at every place, as `aaa…`
 * is where `aaa…b` is secret, would take as many as the secret is long, and everybody else waits.
 */
const MAX_STEPS_PER_UNIT = 16;

/**
 * Finds secrets in one pass over a text, however many they are and however long: as they are, and as JSON may write them
 * (`\/` and `\u002f` are slashes to whoever parses it). No regular expression: V8 refuses long ones, in words that quote them.
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

/** All secrets that begin alike, as a tree: where they part, each way is a branch of its own. */
interface RadixNode {
  /** One of them: up to `until` they are all the same. */
  readonly example: string;
  readonly until: number;
  /** Whether one of them ends there. */
  readonly isWhole: boolean;
  readonly ways: ReadonlyMap<number, RadixNode>;
}

/** Secrets from `low` to before `high`, which are the same up to `depth`: the way `unit` of `ways`. */
interface PendingNode {
  readonly low: number;
  readonly high: number;
  readonly depth: number;
  readonly unit: number;
  readonly ways: Map<number, RadixNode>;
}

/** Of secrets that are sorted and all different. Not by recursion: `a`, `aa`, `aaa`… part at every character. */
function buildRadixTree(sorted: readonly string[]): RadixNode {
  const top = new Map<number, RadixNode>();
  const open: PendingNode[] = [{ low: 0, high: sorted.length, depth: 0, unit: 0, ways: top }];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const { low, high, depth } = next;
    const first = sorted[low] as string;
    const last = sorted[high - 1] as string;
    let until = depth;
    while (until < first.length && first.charCodeAt(until) === last.charCodeAt(until)) until++;
    const isWhole = first.length === until;
    const ways = new Map<number, RadixNode>();
    next.ways.set(next.unit, { example: first, until, isWhole, ways });
    for (let from = isWhole ? low + 1 : low, to = from; from < high; from = to) {
      const unit = (sorted[from] as string).charCodeAt(until);
      while (to < high && (sorted[to] as string).charCodeAt(until) === unit) to++;
      open.push({ low: from, high: to, depth: until, unit, ways });
    }
  }
  return top.get(0) as RadixNode;
}

/** By the lower half of a character: whether a secret may start with it. Most places of most texts need no closer look. */
function buildFirstUnitTable(secrets: readonly string[]): Uint8Array {
  const starts = new Uint8Array(LOW_BYTE_MASK + 1);
  for (const secret of secrets) starts[secret.charCodeAt(0) & LOW_BYTE_MASK] = 1;
  // Whatever it starts with, an escape may write it.
  starts[BACKSLASH] = 1;
  return starts;
}

function findRanges(text: string, root: RadixNode, starts: Uint8Array, isEscaped: boolean): TextRange[] | undefined {
  const spans: { start: number; end: number }[] = [];
  const walk: MatchResult = { end: 0, steps: 0 };
  let stepsLeft = MAX_STEPS_PER_UNIT * text.length;
  let stepsLeftInside = stepsLeft;
  for (let at = 0; at < text.length; at++) {
    if (starts[text.charCodeAt(at) & LOW_BYTE_MASK] === 0) continue;
    const last = spans.at(-1);
    const isInside = last !== undefined && at < last.end;
    // What overlaps a secret goes with it, unless that never ends: `aaaa` stands in `aaaa…` at every place.
    if (isInside && stepsLeftInside < 0) {
      at = last.end - 1;
      continue;
    }
    matchAt(walk, text, at, root, isEscaped);
    if (isInside) {
      stepsLeftInside -= walk.steps;
      if (walk.end > last.end) last.end = walk.end;
      continue;
    }
    stepsLeft -= walk.steps;
    if (stepsLeft < 0) return undefined;
    if (walk.end > 0) spans.push({ start: at, end: walk.end });
  }
  return spans;
}

/** Where the longest secret that starts at a place ends, 0 if none does; and how many steps it took to tell. */
interface MatchResult {
  end: number;
  steps: number;
}

/** What has escapes is read as JSON and as it stands: a backslash may be one. No writer does now this, now that. */
function matchAt(walk: MatchResult, text: string, from: number, root: RadixNode, isEscaped: boolean): void {
  walk.end = 0;
  walk.steps = 0;
  matchEncodedAt(walk, text, from, root, false);
  if (isEscaped) matchEncodedAt(walk, text, from, root, true);
}

function matchEncodedAt(walk: MatchResult, text: string, from: number, root: RadixNode, asJson: boolean): void {
  let branch = root;
  let at = from;
  for (let depth = 0; ; ) {
    for (; depth < branch.until; depth++) {
      walk.steps += 1;
      const read = readUnit(text, at, asJson);
      if ((read & UNIT_MASK) !== branch.example.charCodeAt(depth) || at >= text.length) return;
      at += read >> UNIT_BITS;
    }
    if (branch.isWhole && at > walk.end) walk.end = at;
    walk.steps += 1;
    const way = at < text.length ? branch.ways.get(readUnit(text, at, asJson) & UNIT_MASK) : undefined;
    if (way === undefined) return;
    branch = way;
  }
}

const UNIT_BITS = 16;
const UNIT_MASK = 0xffff;
const LOW_BYTE_MASK = 0xff;
const BACKSLASH = 0x5c;
const LETTER_U = 0x75;

/** What JSON writes as a backslash and one character. */
const SHORT_ESCAPES = new Map(
  Object.entries({ '"': '"', '\\': '\\', '/': '/', b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }).map(
    ([written, meant]) => [written.charCodeAt(0), meant.charCodeAt(0)],
  ),
);

/** The code unit that is written at a place, and above it how many characters that takes. */
function readUnit(text: string, at: number, asJson: boolean): number {
  const unit = text.charCodeAt(at);
  if (!asJson || unit !== BACKSLASH) return (1 << UNIT_BITS) | unit;
  const next = text.charCodeAt(at + 1);
  if (next === LETTER_U) {
    const meant = parseHex4(text, at + 2);
    return meant === undefined ? (1 << UNIT_BITS) | unit : (6 << UNIT_BITS) | meant;
  }
  const meant = SHORT_ESCAPES.get(next);
  return meant === undefined ? (1 << UNIT_BITS) | unit : (2 << UNIT_BITS) | meant;
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
