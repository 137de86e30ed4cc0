import type { Json, JsonObject } from '../../domain/json.ts';

/**
 * How large a schema is with its references written out: checking costs at most that much for each value. Two references each
 * to the next of thirty definitions are 2^30, one to itself is without end, and so is what cannot be followed here.
 */
export function measureExpandedSize(schema: JsonObject): number {
  return new ExpandedSizeCalculator(schema).measure(schema);
}

const UNBOUNDED = Number.POSITIVE_INFINITY;
const REFERENCE_KEYWORDS = new Set(['$ref', '$dynamicRef', '$recursiveRef']);

class ExpandedSizeCalculator {
  readonly #root: JsonObject;
  readonly #sizes = new Map<object, number>();

  constructor(root: JsonObject) {
    this.#root = root;
  }

  measure(node: Json): number {
    if (typeof node !== 'object' || node === null) return 1;
    const known = this.#sizes.get(node);
    if (known !== undefined) return known;
    // Whoever comes here again before it is known came by a reference from inside.
    this.#sizes.set(node, UNBOUNDED);
    let size = this.#hasOwnBase(node) ? UNBOUNDED : 1;
    for (const [key, value] of Object.entries(node)) {
      size +=
        REFERENCE_KEYWORDS.has(key) && typeof value === 'string'
          ? this.#measureTarget(key, value)
          : this.measure(value as Json);
    }
    this.#sizes.set(node, size);
    return size;
  }

  /** References below an `$id` of its own mean something else. */
  #hasOwnBase(node: object): boolean {
    return node !== this.#root && typeof (node as JsonObject)['$id'] === 'string';
  }

  #measureTarget(key: string, reference: string): number {
    if (key !== '$ref' || !/^#(?:\/|$)/.test(reference)) return UNBOUNDED;
    let at: Json | undefined = this.#root;
    for (const part of reference.split('/').slice(1)) {
      if (typeof at !== 'object' || at === null) return UNBOUNDED;
      at = (at as JsonObject)[unescapePointer(part)];
    }
    return at === undefined ? UNBOUNDED : this.measure(at);
  }
}

function unescapePointer(part: string): string {
  return decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~');
}
