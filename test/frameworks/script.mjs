// What a scripted model does: the calls it was told to make, one a turn, then it says what it has seen of them.
const calls = JSON.parse(process.env.CALLS);

/** @param seen what the tools answered so far, as the framework shows it to a model */
export function turn(seen) {
  const next = calls[seen.length];
  return next === undefined ? { text: JSON.stringify(seen) } : { call: next };
}

/** What a tool answered, as it is meant: frameworks show results as text. */
export function shown(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Runs a recipe with a model, and tells the test what the model saw. */
export async function play(recipe, model) {
  const { answer } = await import(new URL(`../../clients/recipes/${recipe}`, import.meta.url));
  const text = await answer(model, 'Do it.');
  process.stdout.write(`${text}\n`);
}
