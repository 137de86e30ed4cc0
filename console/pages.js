// Lists of several pages.

import { get } from './api.js';

const PAGE_SIZE = 50;
const MAX_PAGE_SIZE = 200;

/**
 * The first pages of a list, as many as the person asked for. Each load reads all of them again, so that every row is current.
 * @template T
 */
export class Pages {
  /** @param {(query: { limit: string, cursor: string | undefined }) => string} path */
  constructor(path) {
    this.path = path;
    this.pages = 1;
  }

  /** Adds a page to the next load. */
  more() {
    this.pages += 1;
  }

  /** @returns {Promise<{ items: T[], cursor: string | null }>} */
  async load() {
    /** @type {T[]} */
    const items = [];
    /** @type {string | null} */
    let cursor = null;
    const max = this.pages * PAGE_SIZE;
    // If items are large, the gateway returns fewer than requested; then this reads at most `pages` smaller pages.
    for (let read = 0; read < this.pages && items.length < max; read++) {
      const limit = String(Math.min(MAX_PAGE_SIZE, max - items.length));
      /** @type {{ items: T[], cursor: string | null }} */
      const page = await get(this.path({ limit, cursor: cursor ?? undefined }));
      items.push(...page.items);
      cursor = page.cursor;
      if (cursor === null) break;
    }
    return { items, cursor };
  }
}
