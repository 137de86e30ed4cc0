/**
 * `pattern` of a tool's input schema runs on V8's backtracking engine, which 29 hostile characters can stall for
 * seconds. So the worst case of a pattern is estimated at load: no backreferences, no lookaround, no repetition of
 * something that itself varies, and otherwise steps ≈ factor · length^degree. Text longer than keeps that under
 * MOST_STEPS does not match.
 */
export interface BoundedRegex {
  readonly test: (text: string) => boolean;
  readonly longest: number;
  /** What a test of text of this length takes at worst. */
  readonly steps: (length: number) => number;
}

const MAX_STEPS = 20_000_000;
const MAX_DEGREE = 3;
const MAX_FACTOR = 2_000;
const MAX_SIZE = 5_000;

interface RegexCost {
  readonly degree: number;
  readonly factor: number;
  /** Whether it may match in more than one way. */
  readonly varies: boolean;
  /** How long it is with its repetitions written out: V8 throws on what is too large, when it first runs. */
  readonly size: number;
}

const CONSTANT_COST: RegexCost = { degree: 0, factor: 1, varies: false, size: 1 };

export function compileBoundedRegex(pattern: string): BoundedRegex | { readonly fault: string } {
  if (pattern.length > 1_000) return { fault: 'the pattern is longer than 1000 characters' };
  let regex: RegExp;
  try {
    regex = new RegExp(pattern, 'u');
  } catch {
    return { fault: 'the pattern is not a regular expression' };
  }
  const cost = new RegexCostEstimator(pattern).estimate();
  if (typeof cost === 'string') return { fault: `the pattern could stall the gateway: it has ${cost}` };
  if (cost.size > MAX_SIZE) return { fault: 'the pattern is too large: use smaller numbers in {n,m}' };
  const anchored = pattern.startsWith('^') && !pattern.includes('|');
  const degree = cost.degree + (anchored ? 0 : 1);
  if (degree > MAX_DEGREE || cost.factor > MAX_FACTOR) {
    return { fault: 'the pattern could stall the gateway: anchor it with ^, use fewer *, + and {n,m}' };
  }
  const longest = degree === 0 ? Number.MAX_SAFE_INTEGER : Math.floor((MAX_STEPS / cost.factor) ** (1 / degree));
  return {
    test: (text) => text.length <= longest && regex.test(text),
    longest,
    steps: (length) => (length <= longest ? cost.factor * length ** degree : 1),
  };
}

/** Reads a pattern that RegExp has already accepted. A string instead of a cost says what is refused. */
class RegexCostEstimator {
  readonly #pattern: string;
  #offset = 0;

  constructor(pattern: string) {
    this.#pattern = pattern;
  }

  estimate(): RegexCost | string {
    return this.#estimateAlternatives();
  }

  #estimateAlternatives(): RegexCost | string {
    let sum = this.#estimateSequence();
    while (typeof sum !== 'string' && this.#pattern[this.#offset] === '|') {
      this.#offset += 1;
      const next = this.#estimateSequence();
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

  #estimateSequence(): RegexCost | string {
    let product: RegexCost = CONSTANT_COST;
    while (this.#offset < this.#pattern.length && !'|)'.includes(this.#pattern[this.#offset] ?? '')) {
      const atom = this.#estimateAtom();
      if (typeof atom === 'string') return atom;
      const next = this.#applyQuantifier(atom);
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

  #estimateAtom(): RegexCost | string {
    const rest = this.#pattern.slice(this.#offset);
    if (rest.startsWith('(')) return this.#estimateGroup(rest);
    if (rest.startsWith('[')) {
      let end = 1;
      while (end < rest.length && rest[end] !== ']') end += rest[end] === '\\' ? 2 : 1;
      this.#offset += end + 1;
      return CONSTANT_COST;
    }
    if (/^\\[1-9k]/.test(rest)) return 'a backreference';
    const escaped = /^\\(?:u\{[^}]*\}|u[\da-fA-F]{4}|x[\da-fA-F]{2}|[pP]\{[^}]*\}|c[A-Za-z]|[\s\S])/u.exec(rest);
    this.#offset += escaped?.[0].length ?? String.fromCodePoint(rest.codePointAt(0) ?? 0).length;
    return CONSTANT_COST;
  }

  #estimateGroup(rest: string): RegexCost | string {
    if (/^\(\?<?[=!]/.test(rest)) return 'lookaround';
    this.#offset += /^\((?:\?(?::|<[^>]*>))?/.exec(rest)?.[0].length ?? 1;
    const inner = this.#estimateAlternatives();
    this.#offset += 1;
    return inner;
  }

  #applyQuantifier(atom: RegexCost): RegexCost | string {
    const [whole, mark, from, comma, to] =
      /^(?:([*+?])|\{(\d+)(,?)(\d*)\})\??/.exec(this.#pattern.slice(this.#offset)) ?? [];
    if (whole === undefined) return atom;
    this.#offset += whole.length;
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
