/** How often a path is decoded. No real server decodes a path more often. */
const MAX_DECODINGS = 3;

// biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern looks for them
const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f]/;

/**
 * Whether some server could read this unescaped path as another path. By the RFC an encoded slash stays in its segment. Some servers
 * decode before they split, decode twice, treat a backslash as a slash, or cut a segment at `;`. A path that leaves its segment
 * on any of them is refused.
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
