// Lists that are longer than a page.

import { get } from './api.js';

const PAGE = 50;
const MOST_AT_ONCE = 200;

/**
 * A list as far as somebody wants to read it. All of it is read anew each time: what is shown is how things stand, however far down.
 * @template T
 */
export class Pages {
  /** @param {(query: { limit: string, cursor: string | undefined }) => string} path */
  constructor(path) {
    this.path = path;
    this.pages = 1;
  }

  /** One page more, from the next reading on. */
  more() {
    this.pages += 1;
  }

  /** @returns {Promise<{ items: T[], cursor: string | null }>} */
  async load() {
    /** @type {T[]} */
    const items = [];
    /** @type {string | null} */
    let cursor = null;
    const most = this.pages * PAGE;
    // The gateway may give less than it is asked for, where items are large: then more pages are shown, and not more is read.
    for (let read = 0; read < this.pages && items.length < most; read++) {
      const limit = String(Math.min(MOST_AT_ONCE, most - items.length));
      /** @type {{ items: T[], cursor: string | null }} */
      const page = await get(this.path({ limit, cursor: cursor ?? undefined }));
      items.push(...page.items);
      cursor = page.cursor;
      if (cursor === null) break;
    }
    return { items, cursor };
  }
}
