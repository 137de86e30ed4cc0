import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { type Diagnostics, type DocumentPath, locateChild, type SourceFile, type SourceLocation } from '../faults.ts';
import { formatShortValue } from '../zod-issues.ts';

/** A value of a document and its path. For a `$ref`, the value and path of its target. */
export interface LocatedValue<T extends Json = Json> {
  readonly value: T;
  readonly path: DocumentPath;
}

/** An operation cannot become a tool; the message is a sentence. `isReported`: the document has a fault, which is reported already. */
export class NotImportableError extends Error {
  readonly isReported: boolean;

  constructor(message: string, isReported = false) {
    super(message);
    this.isReported = isReported;
  }
}

const MAX_REF_HOPS = 20;

/** A parsed OpenAPI document. Resolves references inside the document and reports faults. Never fetches anything. */
export class OpenApiDocument {
  readonly root: JsonObject;
  /** Schemas of 3.0 are a dialect of their own, in which keywords beside a `$ref` are ignored. */
  readonly isVersion30: boolean;
  readonly #source: SourceFile;
  readonly #diagnostics: Diagnostics;

  private constructor(source: SourceFile, root: JsonObject, isVersion30: boolean, diagnostics: Diagnostics) {
    this.#source = source;
    this.#diagnostics = diagnostics;
    this.root = root;
    this.isVersion30 = isVersion30;
  }

  static fromSource(source: SourceFile, diagnostics: Diagnostics): OpenApiDocument | undefined {
    const root = source.value as Json;
    const version = isJsonObject(root) ? root['openapi'] : undefined;
    if (isJsonObject(root) && typeof version === 'string' && /^3\.[01](?:\.|$)/.test(version)) {
      return new OpenApiDocument(source, root, version.startsWith('3.0'), diagnostics);
    }
    const found =
      isJsonObject(root) && root['swagger'] !== undefined ? 'Swagger 2.0' : formatShortValue(version ?? root);
    const location = { source, path: version === undefined ? [] : ['openapi'] };
    diagnostics.addError(location, `The document must be OpenAPI 3.0 or 3.1 (got ${found}).`);
    return undefined;
  }

  locate(path: DocumentPath): SourceLocation {
    return locateChild({ source: this.#source, path: [] }, ...path);
  }

  addWarning(path: DocumentPath, message: string): void {
    this.#diagnostics.addWarning(this.locate(path), message);
  }

  addError(path: DocumentPath, message: string): NotImportableError {
    this.#diagnostics.addError(this.locate(path), message);
    return new NotImportableError(message, true);
  }

  expectMap(value: Json | undefined, path: DocumentPath): JsonObject {
    if (value === undefined) return {};
    if (!isJsonObject(value))
      throw this.addError(path, `${path.at(-1) ?? 'The document'} must be a map (got ${formatShortValue(value)}).`);
    return value;
  }

  expectList(value: Json | undefined, path: DocumentPath): readonly Json[] {
    if (value === undefined) return [];
    if (!Array.isArray(value))
      throw this.addError(path, `${path.at(-1) ?? 'The document'} must be a list (got ${formatShortValue(value)}).`);
    return value as readonly Json[];
  }

  /** Follows every `$ref` at the top of a value. */
  dereference(value: Json | undefined, path: DocumentPath): LocatedValue {
    let found: LocatedValue = { value: value ?? null, path };
    for (let hops = 0; isJsonObject(found.value) && found.value['$ref'] !== undefined; hops++) {
      const where = [...found.path, '$ref'];
      if (hops > MAX_REF_HOPS) throw this.addError(where, 'The reference leads back to itself. Remove the cycle.');
      found = this.resolveRef(found.value['$ref'], where);
    }
    return found;
  }

  /** The target of one `$ref`. */
  resolveRef(ref: Json, where: DocumentPath): LocatedValue {
    if (typeof ref !== 'string')
      throw this.addError(
        where,
        `$ref must be text such as "#/components/schemas/Pet" (got ${formatShortValue(ref)}).`,
      );
    if (!ref.startsWith('#'))
      throw new NotImportableError(
        `The reference ${JSON.stringify(ref.slice(0, 60))} leads to another document, which is not fetched. Bundle it into this one.`,
      );
    const path = parsePointer(ref.slice(1));
    let value: Json | undefined = this.root;
    for (const segment of path ?? []) {
      const container: Json | undefined = value;
      if (Array.isArray(container)) value = (container as readonly Json[])[Number(segment)];
      else value = isJsonObject(container) && Object.hasOwn(container, segment) ? container[segment] : undefined;
    }
    if (path === undefined || value === undefined)
      throw this.addError(
        where,
        `The reference ${JSON.stringify(ref.slice(0, 60))} leads to nothing in this document.`,
      );
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

/** Converts the indices of a pointer, which are text, to numbers. */
function toDocumentPath(root: Json, pointer: readonly string[]): DocumentPath {
  let value: Json | undefined = root;
  return pointer.map((segment) => {
    const isInList: boolean = Array.isArray(value);
    value = (value as Record<string, Json> | undefined)?.[segment];
    return isInList ? Number(segment) : segment;
  });
}
