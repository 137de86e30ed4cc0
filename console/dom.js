// Builds the page from elements and text, never from HTML strings, so that untrusted text stays text.

import { escaped, textNodes } from './hidden.js';

/** @import { Child } from './types.d.ts' */
/** @typedef {Record<string, (event: Event) => void>} Handlers */
/** @typedef {{ on?: Handlers } & Record<string, string | number | boolean | null | undefined | Handlers>} Attributes */

const SVG = 'http://www.w3.org/2000/svg';

/** The event handlers of each element. A redraw replaces the handlers of an element that it keeps. @type {WeakMap<Element, Handlers>} */
const handlers = new WeakMap();

/** @param {Event} event */
function handle(event) {
  handlers.get(/** @type {Element} */ (event.currentTarget))?.[event.type]?.(event);
}

/** @param {Element} element @param {Handlers} [added] */
function listen(element, added = {}) {
  const known = handlers.get(element) ?? {};
  for (const type of Object.keys(added)) if (!(type in known)) element.addEventListener(type, handle);
  handlers.set(element, added);
}

/** Attributes that a person or a screen reader reads. */
const READABLE = new Set(['title', 'aria-label']);

/**
 * @param {Element} element
 * @param {Attributes} attributes
 * @param {readonly Child[]} children
 */
function fill(element, { on, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? '' : READABLE.has(name) ? escaped(String(value)) : String(value));
  }
  if (on !== undefined) listen(element, on);
  append(element, children);
}

/** @param {Node} parent @param {Child} child */
function append(parent, child) {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) for (const each of child) append(parent, each);
  else if (child instanceof Node) parent.appendChild(child);
  else for (const node of textNodes(parent, String(child))) parent.appendChild(node);
}

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

/**
 * @param {string} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  fill(element, attributes, children);
  return element;
}

/** @param {string} id */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`The page has no element #${id}.`);
  return found;
}

/**
 * Updates the children of an element and changes only what differs, so that focus, selection, scrolling and open details
 * stay. Children with a data-key are matched by key, others by position.
 * @param {Element} old
 * @param {readonly Child[]} children
 */
export function show(old, ...children) {
  const drawn = document.createElement('div');
  append(drawn, children);
  morphChildren(old, drawn);
}

/** @param {Node} node */
const keyOf = (node) => (node instanceof Element ? node.getAttribute('data-key') : null);

/** @param {Node} a @param {Node} b */
const isSameKind = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/** @param {Node} old @param {Node} drawn */
function morphChildren(old, drawn) {
  const keyed = new Map([...old.childNodes].flatMap((node) => (keyOf(node) === null ? [] : [[keyOf(node), node]])));
  /** @type {ChildNode | null} */
  let position = old.firstChild;
  for (const child of [...drawn.childNodes]) {
    const key = keyOf(child);
    const found = key === null ? position : (keyed.get(key) ?? null);
    if (found === null || !isSameKind(found, child)) {
      old.insertBefore(child, position);
      continue;
    }
    if (found === position) position = found.nextSibling;
    else old.insertBefore(found, position);
    morph(found, child);
  }
  while (position !== null) {
    const next = position.nextSibling;
    position.remove();
    position = next;
  }
}

/** Attributes that the person changes by using the page. */
const USER_STATE = new Set(['open', 'value', 'checked']);

/** @param {Node} old @param {Node} drawn */
function morph(old, drawn) {
  if (!(old instanceof Element) || !(drawn instanceof Element)) {
    if (old.nodeValue !== drawn.nodeValue) old.nodeValue = drawn.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!drawn.hasAttribute(name) && !USER_STATE.has(name)) old.removeAttribute(name);
  for (const { name, value } of [...drawn.attributes])
    if (old.getAttribute(name) !== value && !USER_STATE.has(name)) old.setAttribute(name, value);
  listen(old, handlers.get(drawn));
  // `data-keep` marks an answer to the person's own question. It stays until they ask again.
  if (!drawn.hasAttribute('data-keep')) morphChildren(old, drawn);
}
