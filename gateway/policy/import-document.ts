import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import { at, type Path, type Place, type Report, type Source } from './faults.ts';
import { shown } from './issues.ts';

/** Something of a document, and where it is written: behind a `$ref`, where that leads. */
export interface Located<T extends Json = Json> {
  readonly value: T;
  readonly path: Path;
}

/** Why an operation cannot become a tool. `broken`: the document is wrong, and the fault has been told. */
export class NotImportable extends Error {
  readonly broken: boolean;

  constructor(why: string, broken = false) {
    super(why);
    this.broken = broken;
  }
}

const MOST_HOPS = 20;

/** An OpenAPI document that was read: looks things up in it, and says what is wrong where. Nothing is ever fetched. */
export class OpenApiDocument {
  readonly root: JsonObject;
  /** In 3.0 schemas have a dialect of their own, and nothing counts beside a `$ref`. */
  readonly old: boolean;
  readonly #source: Source;
  readonly #report: Report;

  private constructor(source: Source, root: JsonObject, old: boolean, report: Report) {
    this.#source = source;
    this.#report = report;
    this.root = root;
    this.old = old;
  }

  static from(source: Source, report: Report): OpenApiDocument | undefined {
    const root = source.value as Json;
    const version = isObject(root) ? root['openapi'] : undefined;
    if (isObject(root) && typeof version === 'string' && /^3\.[01](?:\.|$)/.test(version)) {
      return new OpenApiDocument(source, root, version.startsWith('3.0'), report);
    }
    const found = isObject(root) && root['swagger'] !== undefined ? 'a Swagger 2.0 document' : shown(version ?? root);
    const place = { source, path: version === undefined ? [] : ['openapi'] };
    report.fault(place, `${found} is not OpenAPI 3.0 or 3.1: write openapi: 3.1.0`);
    return undefined;
  }

  place(path: Path): Place {
    return at({ source: this.#source, path: [] }, ...path);
  }

  warn(path: Path, message: string): void {
    this.#report.warn(this.place(path), message);
  }

  fault(path: Path, message: string): NotImportable {
    this.#report.fault(this.place(path), message);
    return new NotImportable(message, true);
  }

  map(value: Json | undefined, path: Path): JsonObject {
    if (value === undefined) return {};
    if (!isObject(value)) throw this.fault(path, `${shown(value)} is not a map`);
    return value;
  }

  list(value: Json | undefined, path: Path): readonly Json[] {
    if (value === undefined) return [];
    if (!Array.isArray(value)) throw this.fault(path, `${shown(value)} is not a list`);
    return value as readonly Json[];
  }

  /** What a value says, after every `$ref` at its top. */
  follow(value: Json | undefined, path: Path): Located {
    let found: Located = { value: value ?? null, path };
    for (let hops = 0; isObject(found.value) && found.value['$ref'] !== undefined; hops++) {
      const where = [...found.path, '$ref'];
      if (hops > MOST_HOPS) throw this.fault(where, 'this reference leads back to itself');
      found = this.target(found.value['$ref'], where);
    }
    return found;
  }

  /** Where one `$ref` leads. */
  target(ref: Json, where: Path): Located {
    if (typeof ref !== 'string') throw this.fault(where, `${shown(ref)} is not a reference: write "#/components/…"`);
    if (!ref.startsWith('#'))
      throw new NotImportable(`${shown(ref)} is in another document, and nothing is fetched: bundle it into this one`);
    const path = pointerOf(ref.slice(1));
    let value: Json | undefined = this.root;
    for (const segment of path ?? []) {
      const container: Json | undefined = value;
      if (Array.isArray(container)) value = (container as readonly Json[])[Number(segment)];
      else value = isObject(container) && Object.hasOwn(container, segment) ? container[segment] : undefined;
    }
    if (path === undefined || value === undefined) throw this.fault(where, `there is nothing at ${shown(ref)}`);
    return { value, path: positions(this.root, path) };
  }
}

/** The segments of a JSON pointer in a URI fragment. */
function pointerOf(fragment: string): string[] | undefined {
  if (fragment === '') return [];
  if (!fragment.startsWith('/')) return undefined;
  try {
    const segments = decodeURIComponent(fragment.slice(1)).split('/');
    return segments.map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'));
  } catch {
    return undefined;
  }
}

/** A pointer's numbers are text; a place in a list is a number. */
function positions(root: Json, pointer: readonly string[]): Path {
  let value: Json | undefined = root;
  return pointer.map((segment) => {
    const inList: boolean = Array.isArray(value);
    value = (value as Record<string, Json> | undefined)?.[segment];
    return inList ? Number(segment) : segment;
  });
}
