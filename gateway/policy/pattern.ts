/**
 * `pattern` of a tool's input schema runs on V8's backtracking engine, which 29 hostile characters can stall for
 * seconds. So the worst case of a pattern is estimated at load: no backreferences, no lookaround, no repetition of
 * something that itself varies, and otherwise steps ≈ factor · length^degree. Text longer than keeps that under
 * MOST_STEPS does not match.
 */
export interface Pattern {
  readonly test: (text: string) => boolean;
  readonly longest: number;
  /** What a test of text of this length takes at worst. */
  readonly steps: (length: number) => number;
}

const MOST_STEPS = 20_000_000;
const MOST_DEGREE = 3;
const MOST_FACTOR = 2_000;
const MOST_SIZE = 5_000;

interface Cost {
  readonly degree: number;
  readonly factor: number;
  /** Whether it may match in more than one way. */
  readonly varies: boolean;
  /** How long it is with its repetitions written out: V8 throws on what is too large, when it first runs. */
  readonly size: number;
}

const FIXED: Cost = { degree: 0, factor: 1, varies: false, size: 1 };

export function compilePattern(pattern: string): Pattern | { readonly fault: string } {
  if (pattern.length > 1_000) return { fault: 'the pattern is longer than 1000 characters' };
  let regex: RegExp;
  try {
    regex = new RegExp(pattern, 'u');
  } catch {
    return { fault: 'the pattern is not a regular expression' };
  }
  const cost = new Estimate(pattern).whole();
  if (typeof cost === 'string') return { fault: `the pattern could stall the gateway: it has ${cost}` };
  if (cost.size > MOST_SIZE) return { fault: 'the pattern is too large: use smaller numbers in {n,m}' };
  const anchored = pattern.startsWith('^') && !pattern.includes('|');
  const degree = cost.degree + (anchored ? 0 : 1);
  if (degree > MOST_DEGREE || cost.factor > MOST_FACTOR) {
    return { fault: 'the pattern could stall the gateway: anchor it with ^, use fewer *, + and {n,m}' };
  }
  const longest = degree === 0 ? Number.MAX_SAFE_INTEGER : Math.floor((MOST_STEPS / cost.factor) ** (1 / degree));
  return {
    test: (text) => text.length <= longest && regex.test(text),
    longest,
    steps: (length) => (length <= longest ? cost.factor * length ** degree : 1),
  };
}

/** Reads a pattern that RegExp has already accepted. A string instead of a cost says what is refused. */
class Estimate {
  readonly #pattern: string;
  #at = 0;

  constructor(pattern: string) {
    this.#pattern = pattern;
  }

  whole(): Cost | string {
    return this.#alternatives();
  }

  #alternatives(): Cost | string {
    let sum = this.#sequence();
    while (typeof sum !== 'string' && this.#pattern[this.#at] === '|') {
      this.#at += 1;
      const next = this.#sequence();
      if (typeof next === 'string') return next;
      sum = {
        degree: Math.max(sum.degree, next.degree),
        factor: sum.factor + next.factor,
        varies: true,
        size: sum.size + next.size,
      };
    }
    return sum;
  }

  #sequence(): Cost | string {
    let product: Cost = FIXED;
    while (this.#at < this.#pattern.length && !'|)'.includes(this.#pattern[this.#at] ?? '')) {
      const atom = this.#atom();
      if (typeof atom === 'string') return atom;
      const next = this.#quantified(atom);
      if (typeof next === 'string') return next;
      product = {
        degree: product.degree + next.degree,
        factor: Math.min(product.factor * next.factor, Number.MAX_SAFE_INTEGER),
        varies: product.varies || next.varies,
        size: product.size + next.size,
      };
    }
    return product;
  }

  #atom(): Cost | string {
    const rest = this.#pattern.slice(this.#at);
    if (rest.startsWith('(')) return this.#group(rest);
    if (rest.startsWith('[')) {
      let end = 1;
      while (end < rest.length && rest[end] !== ']') end += rest[end] === '\\' ? 2 : 1;
      this.#at += end + 1;
      return FIXED;
    }
    if (/^\\[1-9k]/.test(rest)) return 'a backreference';
    const escaped = /^\\(?:u\{[^}]*\}|u[\da-fA-F]{4}|x[\da-fA-F]{2}|[pP]\{[^}]*\}|c[A-Za-z]|[\s\S])/u.exec(rest);
    this.#at += escaped?.[0].length ?? String.fromCodePoint(rest.codePointAt(0) ?? 0).length;
    return FIXED;
  }

  #group(rest: string): Cost | string {
    if (/^\(\?<?[=!]/.test(rest)) return 'lookaround';
    this.#at += /^\((?:\?(?::|<[^>]*>))?/.exec(rest)?.[0].length ?? 1;
    const inner = this.#alternatives();
    this.#at += 1;
    return inner;
  }

  #quantified(atom: Cost): Cost | string {
    const [whole, mark, from, comma, to] =
      /^(?:([*+?])|\{(\d+)(,?)(\d*)\})\??/.exec(this.#pattern.slice(this.#at)) ?? [];
    if (whole === undefined) return atom;
    this.#at += whole.length;
    if (mark === '?') return { ...atom, factor: atom.factor + 1, varies: true };
    const least = Number(from ?? 0);
    const most = mark !== undefined || (comma === ',' && to === '') ? Number.POSITIVE_INFINITY : Number(to || from);
    const size = atom.size * Math.max(least, Number.isFinite(most) ? most : 1, 1);
    if (atom.varies && most > 4) return 'a repetition inside a repetition';
    if (atom.varies)
      return { degree: atom.degree * most, factor: atom.factor ** most * (most - least + 1), varies: true, size };
    if (most - least > 16) return { degree: 1, factor: 1, varies: true, size };
    return { degree: 0, factor: most - least + 1, varies: most !== least, size };
  }
}
