/** A server that decodes more often than this decodes until nothing is left of any path. */
const MAX_DECODINGS = 3;

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f]/;

/**
 * Whether some server on the way could take a path, written without its escapes, for another one. To whoever reads the RFC an
 * encoded slash stays in its segment. But there are those that decode before they look for slashes and dots, those that
 * decode twice, those to whom a backslash is a slash, and those that cut a segment at its `;`. What would climb out of its
 * place for any of them is not sent.
 */
export function hasPathTraversal(path: string): boolean {
  let text = path;
  for (let decodings = 0; ; decodings++) {
    if (CONTROL_CHARACTERS.test(text) || text.split(/[/\\]/).some((part) => /^\.{1,2}(?:[;?#]|$)/.test(part)))
      return true;
    const decoded = text.replaceAll(/%([0-9a-f]{2})/gi, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
    if (decoded === text || decodings === MAX_DECODINGS) return false;
    text = decoded;
  }
}
