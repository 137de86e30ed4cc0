// The script of a model: it makes the calls in the variable CALLS, one per turn, and then answers with their results.
const calls = JSON.parse(process.env.CALLS);

/** @param seen the tool results so far, as the framework shows them to a model */
export function nextTurn(seen) {
  const next = calls[seen.length];
  return next === undefined ? { text: JSON.stringify(seen) } : { call: next };
}

/** Parses a tool result, because frameworks show results to a model as text. */
export function parseResult(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Runs a recipe with a model, and prints the answer for the test. */
export async function runRecipe(recipe, model) {
  const { answer } = await import(new URL(`../../clients/recipes/${recipe}`, import.meta.url));
  const text = await answer(model, 'Do it.');
  process.stdout.write(`${text}\n`);
}
