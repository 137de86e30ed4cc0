/** Makes untrusted text storable: PostgreSQL refuses NUL and lone surrogates, and neither may prevent a record. */
export function sanitize(text: string, maxLength = Number.POSITIVE_INFINITY): string {
  return (text.length > maxLength ? text.slice(0, maxLength) : text).replace(/\0|\p{Cs}/gu, '\uFFFD');
}
