/** Lists members that the documented value has and the actual value lacks, or that differ in type. The documented value may be shortened. */
export function listShapeFaults(actual: unknown, documented: unknown, path = '$'): string[] {
  if (typeOf(actual) !== typeOf(documented)) return [`${path} is ${typeOf(actual)}, not ${typeOf(documented)}`];
  if (Array.isArray(actual) && Array.isArray(documented))
    return actual.length === 0 || documented.length === 0
      ? []
      : listShapeFaults(actual[0], documented[0], `${path}[0]`);
  if (typeOf(documented) !== 'object') return [];
  const members = actual as Record<string, unknown>;
  return Object.entries(documented as Record<string, unknown>).flatMap(([name, value]) => {
    if (name === '…') return [];
    return name in members ? listShapeFaults(members[name], value, `${path}.${name}`) : [`${path}.${name} is absent`];
  });
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'array' : typeof value;
}
