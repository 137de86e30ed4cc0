const MAX_LISTED_NAMES = 10;

/** `; did you mean "x"?`, or nothing. Imports `findClosestName` only when needed, so that other commands start faster. */
export async function suggestNearest(word: string, candidates: Iterable<string>): Promise<string> {
  const all = [...candidates];
  // findClosestName counts two swapped letters as two mistakes, so the most common typo is checked first.
  const swapped = all.find((candidate) => isTransposition(word, candidate));
  if (swapped !== undefined) return `; did you mean ${JSON.stringify(swapped)}?`;
  const { findClosestName } = await import('../policy/faults.ts');
  const closest = findClosestName(word, all);
  return closest === undefined ? '' : `; did you mean ${JSON.stringify(closest)}?`;
}

/** Like `suggestNearest`; if no name is near, lists the first names. */
export async function suggestNearestOrAll(word: string, candidates: Iterable<string>): Promise<string> {
  const all = [...candidates];
  const found = await suggestNearest(word, all);
  if (found !== '' || all.length === 0) return found;
  const more = all.length > MAX_LISTED_NAMES ? ` and ${all.length - MAX_LISTED_NAMES} more` : '';
  return `; there ${all.length === 1 ? 'is' : 'are'}: ${all.slice(0, MAX_LISTED_NAMES).join(', ')}${more}`;
}

function isTransposition(word: string, candidate: string): boolean {
  if (word.length !== candidate.length || word === candidate) return false;
  const at = [...word].findIndex((letter, index) => letter !== candidate[index]);
  const swapped = word.slice(0, at) + (word[at + 1] ?? '') + word[at] + word.slice(at + 2);
  return swapped === candidate;
}
