/**
 * What a stranger wrote, as it can be kept: PostgreSQL takes neither NUL nor half a surrogate pair, and neither may keep
 * anybody from writing down what happened.
 */
export function sanitize(text: string, most = Number.POSITIVE_INFINITY): string {
  return (text.length > most ? text.slice(0, most) : text).replace(/\0|\p{Cs}/gu, '\uFFFD');
}
