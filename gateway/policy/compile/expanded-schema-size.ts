import type { Json, JsonObject } from '../../domain/json.ts';

/**
 * The size of a schema with its references expanded, which bounds the cost of checking one value. Thirty definitions that each refer
 * twice to the next one have the size 2^30. A recursive reference, or one that is not followed here, is unbounded.
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
    // A second visit before the size is known means that the schema refers to itself.
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

  /** An `$id` below the root changes the base of references, which is not followed here. */
  #hasOwnBase(node: object): boolean {
    return node !== this.#root && typeof (node as JsonObject)['$id'] === 'string';
  }

  #measureTarget(key: string, reference: string): number {
    if (key !== '$ref' || !/^#(?:\/|$)/.test(reference)) return UNBOUNDED;
    let target: Json | undefined = this.#root;
    for (const part of reference.split('/').slice(1)) {
      if (typeof target !== 'object' || target === null) return UNBOUNDED;
      target = (target as JsonObject)[unescapePointer(part)];
    }
    return target === undefined ? UNBOUNDED : this.measure(target);
  }
}

function unescapePointer(part: string): string {
  return decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~');
}
