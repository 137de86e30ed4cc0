/** Compiles an exact name, or a glob whose `*` matches any characters including dots. Matching takes linear time: no regular expression is built. */
export function compileGlob(pattern: string): (name: string) => boolean {
  if (!pattern.includes('*')) return (name) => name === pattern;
  const pieces = pattern.split('*');
  const head = pieces[0] ?? '';
  const tail = pieces.at(-1) ?? '';
  const middle = pieces.slice(1, -1).filter((piece) => piece !== '');
  return (name) => {
    if (name.length < head.length + tail.length || !name.startsWith(head) || !name.endsWith(tail)) return false;
    const end = name.length - tail.length;
    let offset = head.length;
    for (const piece of middle) {
      const found = name.indexOf(piece, offset);
      if (found < 0 || found + piece.length > end) return false;
      offset = found + piece.length;
    }
    return true;
  };
}

export function isGlob(pattern: string): boolean {
  return pattern.includes('*');
}
