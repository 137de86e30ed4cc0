import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { type Diagnostics, type DocumentPath, locateChild, type SourceFile, type SourceLocation } from '../faults.ts';
import { formatShortValue } from '../zod-issues.ts';

/** Something of a document, and where it is written: behind a `$ref`, where that leads. */
export interface LocatedValue<T extends Json = Json> {
  readonly value: T;
  readonly path: DocumentPath;
}

/** Why an operation cannot become a tool. `broken`: the document is wrong, and the fault has been told. */
export class NotImportableError extends Error {
  readonly broken: boolean;

  constructor(why: string, broken = false) {
    super(why);
    this.broken = broken;
  }
}

const MAX_REF_HOPS = 20;

/** An OpenAPI document that was read: looks things up in it, and says what is wrong where. Nothing is ever fetched. */
export class OpenApiDocument {
  readonly root: JsonObject;
  /** In 3.0 schemas have a dialect of their own, and nothing counts beside a `$ref`. */
  readonly old: boolean;
  readonly #source: SourceFile;
  readonly #report: Diagnostics;

  private constructor(source: SourceFile, root: JsonObject, old: boolean, report: Diagnostics) {
    this.#source = source;
    this.#report = report;
    this.root = root;
    this.old = old;
  }

  static fromSource(source: SourceFile, report: Diagnostics): OpenApiDocument | undefined {
    const root = source.value as Json;
    const version = isJsonObject(root) ? root['openapi'] : undefined;
    if (isJsonObject(root) && typeof version === 'string' && /^3\.[01](?:\.|$)/.test(version)) {
      return new OpenApiDocument(source, root, version.startsWith('3.0'), report);
    }
    const found =
      isJsonObject(root) && root['swagger'] !== undefined
        ? 'a Swagger 2.0 document'
        : formatShortValue(version ?? root);
    const place = { source, path: version === undefined ? [] : ['openapi'] };
    report.addError(place, `${found} is not OpenAPI 3.0 or 3.1: write openapi: 3.1.0`);
    return undefined;
  }

  locate(path: DocumentPath): SourceLocation {
    return locateChild({ source: this.#source, path: [] }, ...path);
  }

  addWarning(path: DocumentPath, message: string): void {
    this.#report.addWarning(this.locate(path), message);
  }

  addError(path: DocumentPath, message: string): NotImportableError {
    this.#report.addError(this.locate(path), message);
    return new NotImportableError(message, true);
  }

  expectMap(value: Json | undefined, path: DocumentPath): JsonObject {
    if (value === undefined) return {};
    if (!isJsonObject(value)) throw this.addError(path, `${formatShortValue(value)} is not a map`);
    return value;
  }

  expectList(value: Json | undefined, path: DocumentPath): readonly Json[] {
    if (value === undefined) return [];
    if (!Array.isArray(value)) throw this.addError(path, `${formatShortValue(value)} is not a list`);
    return value as readonly Json[];
  }

  /** What a value says, after every `$ref` at its top. */
  dereference(value: Json | undefined, path: DocumentPath): LocatedValue {
    let found: LocatedValue = { value: value ?? null, path };
    for (let hops = 0; isJsonObject(found.value) && found.value['$ref'] !== undefined; hops++) {
      const where = [...found.path, '$ref'];
      if (hops > MAX_REF_HOPS) throw this.addError(where, 'this reference leads back to itself');
      found = this.resolveRef(found.value['$ref'], where);
    }
    return found;
  }

  /** Where one `$ref` leads. */
  resolveRef(ref: Json, where: DocumentPath): LocatedValue {
    if (typeof ref !== 'string')
      throw this.addError(where, `${formatShortValue(ref)} is not a reference: write "#/components/…"`);
    if (!ref.startsWith('#'))
      throw new NotImportableError(
        `${formatShortValue(ref)} is in another document, and nothing is fetched: bundle it into this one`,
      );
    const path = parsePointer(ref.slice(1));
    let value: Json | undefined = this.root;
    for (const segment of path ?? []) {
      const container: Json | undefined = value;
      if (Array.isArray(container)) value = (container as readonly Json[])[Number(segment)];
      else value = isJsonObject(container) && Object.hasOwn(container, segment) ? container[segment] : undefined;
    }
    if (path === undefined || value === undefined)
      throw this.addError(where, `there is nothing at ${formatShortValue(ref)}`);
    return { value, path: toDocumentPath(this.root, path) };
  }
}

/** The segments of a JSON pointer in a URI fragment. */
function parsePointer(fragment: string): string[] | undefined {
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
function toDocumentPath(root: Json, pointer: readonly string[]): DocumentPath {
  let value: Json | undefined = root;
  return pointer.map((segment) => {
    const inList: boolean = Array.isArray(value);
    value = (value as Record<string, Json> | undefined)?.[segment];
    return inList ? Number(segment) : segment;
  });
}
