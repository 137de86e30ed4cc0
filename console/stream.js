// Server-sent events, read with fetch: the browser's own reader cannot send a key.

import { problemOf, request } from './api.js';

/** @import { GateEvent } from './types.d.ts' */
/** @typedef {'live' | 'waiting' | 'paused' | 'ended'} Pace */

/** The gateway says every five seconds that it is still there: whoever is silent for so long is not, whatever the connection says. */
const MOST_SILENT_MS = 15_000;
const AGAIN_MS = [500, 1_000, 2_000, 5_000, 10_000];

/**
 * Follows what happens until it is stopped, across broken connections: it comes back with the id of the last event, and the
 * gateway goes on from there. A page that nobody sees lets go of its connection, of which a browser has few.
 */
export class EventFollower {
  /** @param {{ onEvent: (event: GateEvent) => void, onPace: (pace: Pace) => void, onRefused: () => void }} told */
  constructor(told) {
    this.told = told;
    /** @type {string | undefined} */
    this.lastId = undefined;
    this.failures = 0;
    /** @type {AbortController | undefined} */
    this.reading = undefined;
    /** When anything was last heard. @type {number | undefined} */
    this.heardAt = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.watchdog = undefined;
    this.isStopped = false;
    this.onVisibility = () => (document.hidden ? this.pause() : this.start());
    document.addEventListener('visibilitychange', this.onVisibility);
  }

  start() {
    if (this.isStopped || this.reading !== undefined || document.hidden) return;
    const reading = new AbortController();
    this.reading = reading;
    this.watch(reading);
    this.follow(reading).catch(() => this.later(reading));
  }

  /** Gives up a connection on which nothing comes any more, also while it is being made. @param {AbortController} reading */
  watch(reading) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => reading.abort(), MOST_SILENT_MS);
  }

  pause() {
    clearTimeout(this.watchdog);
    this.reading?.abort();
    this.reading = undefined;
    this.told.onPace('paused');
  }

  stop() {
    this.isStopped = true;
    document.removeEventListener('visibilitychange', this.onVisibility);
    clearTimeout(this.watchdog);
    this.reading?.abort();
  }

  /** @param {AbortController} reading */
  later(reading) {
    if (this.reading !== reading || this.isStopped) return;
    clearTimeout(this.watchdog);
    this.told.onPace('waiting');
    const wait = AGAIN_MS[Math.min(this.failures, AGAIN_MS.length - 1)];
    this.failures += 1;
    setTimeout(() => {
      if (this.reading !== reading) return;
      this.reading = undefined;
      this.start();
    }, wait);
  }

  /** @param {AbortController} reading */
  async follow(reading) {
    const { signal } = reading;
    const headers = this.lastId === undefined ? {} : { 'last-event-id': this.lastId };
    const response = await request('/admin/events', { signal, headers: { ...headers, accept: 'text/event-stream' } });
    if (!response.ok || response.body === null) {
      const problem = await problemOf(response);
      if (problem.status === 401 || problem.status === 403) return this.refused();
      throw problem;
    }
    this.failures = 0;
    this.heardAt = Date.now();
    this.told.onPace('live');
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ; ) {
      const { value, done } = await reader.read();
      if (done) throw new Error('the stream ended');
      this.heardAt = Date.now();
      this.watch(reading);
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop() ?? '';
      for (const block of blocks) this.tell(block);
    }
  }

  /** @param {string} block */
  tell(block) {
    /** @type {Record<string, string>} */
    const fields = {};
    for (const line of block.split('\n')) {
      const colon = line.indexOf(': ');
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    const { id, event, data } = fields;
    if (event === undefined || data === undefined) return;
    if (id !== undefined) this.lastId = id;
    const said = JSON.parse(data);
    if (event === 'bye' && [401, 403].includes(said.status)) return this.refused();
    this.told.onEvent({ id: id ?? null, name: event, data: said });
  }

  refused() {
    this.stop();
    this.told.onPace('ended');
    this.told.onRefused();
  }
}
