/**
 * A regular expression of an input schema with a bounded cost. It runs on V8's backtracking engine, which 29 hostile characters can
 * stall for seconds. So the worst case is estimated at load: backreferences, lookaround and repetitions inside repetitions are
 * refused, and the rest takes about factor · length^degree steps. Text that would take more than MAX_STEPS does not match.
 */
export interface BoundedRegex {
  readonly test: (text: string) => boolean;
  readonly maxLength: number;
  /** The worst-case steps for a text of this length. */
  readonly estimateSteps: (length: number) => number;
}

const MAX_STEPS = 20_000_000;
const MAX_DEGREE = 3;
const MAX_FACTOR = 2_000;
const MAX_SIZE = 5_000;

interface RegexCost {
  readonly degree: number;
  readonly factor: number;
  /** Whether it may match in more than one way. */
  readonly canVary: boolean;
  /** The length with repetitions expanded. V8 throws at the first run of a pattern that is too large. */
  readonly size: number;
}

const CONSTANT_COST: RegexCost = { degree: 0, factor: 1, canVary: false, size: 1 };

export function compileBoundedRegex(pattern: string): BoundedRegex | { readonly fault: string } {
  if (pattern.length > 1_000)
    return { fault: `The pattern must have at most 1000 characters (got ${pattern.length}).` };
  let regex: RegExp;
  try {
    regex = new RegExp(pattern, 'u');
  } catch {
    return { fault: 'The pattern is not a valid regular expression.' };
  }
  const cost = new RegexCostEstimator(pattern).estimate();
  if (typeof cost === 'string')
    return { fault: `The pattern could stall the gateway, because it has ${cost}. Write it without.` };
  if (cost.size > MAX_SIZE) return { fault: 'The pattern is too large. Use smaller numbers in {n,m}.' };
  const anchored = pattern.startsWith('^') && !pattern.includes('|');
  const degree = cost.degree + (anchored ? 0 : 1);
  if (degree > MAX_DEGREE || cost.factor > MAX_FACTOR) {
    return { fault: 'The pattern could stall the gateway. Anchor it with ^, and use fewer *, + and {n,m}.' };
  }
  const maxLength = degree === 0 ? Number.MAX_SAFE_INTEGER : Math.floor((MAX_STEPS / cost.factor) ** (1 / degree));
  return {
    test: (text) => text.length <= maxLength && regex.test(text),
    maxLength: maxLength,
    estimateSteps: (length) => (length <= maxLength ? cost.factor * length ** degree : 1),
  };
}

/** Estimates the cost of a pattern that RegExp accepted. A string instead of a cost names the refused construct. */
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
        canVary: true,
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
        canVary: product.canVary || next.canVary,
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
    if (mark === '?') return { ...atom, factor: atom.factor + 1, canVary: true };
    const min = Number(from ?? 0);
    const max = mark !== undefined || (comma === ',' && to === '') ? Number.POSITIVE_INFINITY : Number(to || from);
    const size = atom.size * Math.max(min, Number.isFinite(max) ? max : 1, 1);
    if (atom.canVary && max > 4) return 'a repetition inside a repetition';
    if (atom.canVary)
      return { degree: atom.degree * max, factor: atom.factor ** max * (max - min + 1), canVary: true, size };
    if (max - min > 16) return { degree: 1, factor: 1, canVary: true, size };
    return { degree: 0, factor: max - min + 1, canVary: max !== min, size };
  }
}
