const MOST_NAMED = 10;

/** `; did you mean "x"?`, or nothing. Loaded when somebody mistyped: no other start of the program waits for it. */
export async function near(word: string, candidates: Iterable<string>): Promise<string> {
  const all = [...candidates];
  // Two neighbours swapped is the commonest slip of all, and counts as two letters wrong.
  const swapped = all.find((candidate) => isSwapped(word, candidate));
  if (swapped !== undefined) return `; did you mean ${JSON.stringify(swapped)}?`;
  const { findClosestName } = await import('../policy/faults.ts');
  const closest = findClosestName(word, all);
  return closest === undefined ? '' : `; did you mean ${JSON.stringify(closest)}?`;
}

/** The same; where nothing is near, what there is, if that is a line. */
export async function nearOrAll(word: string, candidates: Iterable<string>): Promise<string> {
  const all = [...candidates];
  const found = await near(word, all);
  if (found !== '' || all.length === 0) return found;
  const more = all.length > MOST_NAMED ? ` and ${all.length - MOST_NAMED} more` : '';
  return `; there ${all.length === 1 ? 'is' : 'are'}: ${all.slice(0, MOST_NAMED).join(', ')}${more}`;
}

function isSwapped(word: string, candidate: string): boolean {
  if (word.length !== candidate.length || word === candidate) return false;
  const at = [...word].findIndex((letter, index) => letter !== candidate[index]);
  const mended = word.slice(0, at) + (word[at + 1] ?? '') + word[at] + word.slice(at + 2);
  return mended === candidate;
}
