// Server-sent events, read with fetch, because EventSource cannot send an Authorization header.

import { problemOf, request } from './api.js';

/** @import { GateEvent } from './types.d.ts' */
/** @typedef {'live' | 'waiting' | 'paused' | 'ended'} StreamState */

/** The gateway sends a heartbeat every 5 s. After this silence it is gone, even if the connection still looks open. */
const MAX_SILENCE_MS = 15_000;
const RETRY_DELAYS_MS = [500, 1_000, 2_000, 5_000, 10_000];

/**
 * Reads events until it is stopped. After a broken connection it reconnects with the id of the last event, and the gateway
 * continues from there. A hidden page closes its connection, because a browser allows only a few per host.
 */
export class EventReader {
  /** @param {{ onEvent: (event: GateEvent) => void, onState: (state: StreamState) => void, onRefused: () => void }} handlers */
  constructor(handlers) {
    this.handlers = handlers;
    /** @type {string | undefined} */
    this.lastId = undefined;
    this.failures = 0;
    /** @type {AbortController | undefined} */
    this.reading = undefined;
    /** When the last bytes arrived. @type {number | undefined} */
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
    this.restartWatchdog(reading);
    this.read(reading).catch(() => this.reconnectLater(reading));
  }

  /** Aborts a silent connection, also while it is being opened. @param {AbortController} reading */
  restartWatchdog(reading) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => reading.abort(), MAX_SILENCE_MS);
  }

  pause() {
    clearTimeout(this.watchdog);
    this.reading?.abort();
    this.reading = undefined;
    this.handlers.onState('paused');
  }

  stop() {
    this.isStopped = true;
    document.removeEventListener('visibilitychange', this.onVisibility);
    clearTimeout(this.watchdog);
    this.reading?.abort();
  }

  /** @param {AbortController} reading */
  reconnectLater(reading) {
    if (this.reading !== reading || this.isStopped) return;
    clearTimeout(this.watchdog);
    this.handlers.onState('waiting');
    const wait = RETRY_DELAYS_MS[Math.min(this.failures, RETRY_DELAYS_MS.length - 1)];
    this.failures += 1;
    setTimeout(() => {
      if (this.reading !== reading) return;
      this.reading = undefined;
      this.start();
    }, wait);
  }

  /** @param {AbortController} reading */
  async read(reading) {
    const { signal } = reading;
    const headers = this.lastId === undefined ? {} : { 'last-event-id': this.lastId };
    const response = await request('/admin/events', { signal, headers: { ...headers, accept: 'text/event-stream' } });
    if (!response.ok || response.body === null) {
      const problem = await problemOf(response);
      if (problem.status === 401 || problem.status === 403) return this.endSession();
      throw problem;
    }
    this.failures = 0;
    this.heardAt = Date.now();
    this.handlers.onState('live');
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ; ) {
      const { value, done } = await reader.read();
      if (done) throw new Error('The stream ended.');
      this.heardAt = Date.now();
      this.restartWatchdog(reading);
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop() ?? '';
      for (const block of blocks) this.handleBlock(block);
    }
  }

  /** @param {string} block */
  handleBlock(block) {
    /** @type {Record<string, string>} */
    const fields = {};
    for (const line of block.split('\n')) {
      const colon = line.indexOf(': ');
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
    const { id, event, data } = fields;
    if (event === undefined || data === undefined) return;
    if (id !== undefined) this.lastId = id;
    const body = JSON.parse(data);
    if (event === 'bye' && [401, 403].includes(body.status)) return this.endSession();
    this.handlers.onEvent({ id: id ?? null, name: event, data: body });
  }

  endSession() {
    this.stop();
    this.handlers.onState('ended');
    this.handlers.onRefused();
  }
}
