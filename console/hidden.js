// Shows invisible characters, and characters that change the direction of text, as their codes.

const HIDDEN = /(?:(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}])+/gu;

/** At most this many hidden runs of one text get an element, to bound the page. Further runs are only escaped. */
const MAX_MARKED = 1_000;

/** Elements that cannot contain elements. */
const TEXT_ONLY = new Set(['option', 'textarea', 'title']);

/** @param {string} text */
export function escaped(text) {
  return text.replace(HIDDEN, codes);
}

/** @param {string} run */
function codes(run) {
  return [...run]
    .map((character) => {
      const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase();
      return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, '0')}`;
    })
    .join('');
}

/**
 * The nodes for an untrusted text, with its hidden characters as codes: a person must read exactly what will be sent.
 * @param {Node} parent
 * @param {string} text
 * @returns {Node[]}
 */
export function textNodes(parent, text) {
  const name = parent.nodeName.toLowerCase();
  if (text.search(HIDDEN) === -1) return [document.createTextNode(text)];
  if (!(parent instanceof Element) || TEXT_ONLY.has(name)) return [document.createTextNode(escaped(text))];
  /** @type {Node[]} */
  const nodes = [];
  let done = 0;
  for (const { 0: run, index } of text.matchAll(HIDDEN)) {
    if (nodes.length >= 2 * MAX_MARKED) break;
    nodes.push(document.createTextNode(text.slice(done, index)), mark(parent, codes(run)));
    done = index + run.length;
  }
  return [...nodes, document.createTextNode(escaped(text.slice(done)))];
}

/** @param {Element} parent @param {string} text */
function mark(parent, text) {
  const isDrawing = parent.namespaceURI === 'http://www.w3.org/2000/svg';
  const element = isDrawing ? document.createElementNS(parent.namespaceURI, 'tspan') : document.createElement('span');
  element.setAttribute('class', 'hidden-character');
  element.textContent = text;
  return element;
}
