let used = 0;

/** An id that no other test of the file has. */
export function uniqueId(prefix: string): string {
  used += 1;
  return `${prefix}-${used}`;
}
