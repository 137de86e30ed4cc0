import type { Json, JsonObject } from '../domain/json.ts';

/**
 * How large a schema is with its references written out: checking costs at most that much for each value. Two references each
 * to the next of thirty definitions are 2^30, one to itself is without end, and so is what cannot be followed here.
 */
export function writtenOutSize(schema: JsonObject): number {
  return new Sizes(schema).of(schema);
}

const ENDLESS = Number.POSITIVE_INFINITY;
const REFERENCES = new Set(['$ref', '$dynamicRef', '$recursiveRef']);

class Sizes {
  readonly #root: JsonObject;
  readonly #known = new Map<object, number>();

  constructor(root: JsonObject) {
    this.#root = root;
  }

  of(node: Json): number {
    if (typeof node !== 'object' || node === null) return 1;
    const known = this.#known.get(node);
    if (known !== undefined) return known;
    // Whoever comes here again before it is known came by a reference from inside.
    this.#known.set(node, ENDLESS);
    let size = this.#isElsewhere(node) ? ENDLESS : 1;
    for (const [key, value] of Object.entries(node)) {
      size += REFERENCES.has(key) && typeof value === 'string' ? this.#ofTarget(key, value) : this.of(value as Json);
    }
    this.#known.set(node, size);
    return size;
  }

  /** References below an `$id` of its own mean something else. */
  #isElsewhere(node: object): boolean {
    return node !== this.#root && typeof (node as JsonObject)['$id'] === 'string';
  }

  #ofTarget(key: string, reference: string): number {
    if (key !== '$ref' || !/^#(?:\/|$)/.test(reference)) return ENDLESS;
    let at: Json | undefined = this.#root;
    for (const part of reference.split('/').slice(1)) {
      if (typeof at !== 'object' || at === null) return ENDLESS;
      at = (at as JsonObject)[nameIn(part)];
    }
    return at === undefined ? ENDLESS : this.of(at);
  }
}

function nameIn(part: string): string {
  return decodeURIComponent(part).replaceAll('~1', '/').replaceAll('~0', '~');
}
