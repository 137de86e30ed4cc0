/** The gateway cannot work with this schema or this server. */
export class SchemaError extends Error {
  override readonly name = 'SchemaError';
}
