// Times, ids and numbers as text.

/** @param {number} count @param {boolean} [more] */
export function number(count, more = false) {
  return `${count.toLocaleString('en-US')}${more ? '+' : ''}`;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** @param {number} ms */
export function duration(ms) {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** The time since or until `at`. @param {number} at @param {number} now */
export function relative(at, now) {
  const ms = at - now;
  if (ms > 0) return `in ${duration(ms)}`;
  if (ms > -1000) return 'now';
  const seconds = -ms / 1000;
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** @param {string} at */
export function clock(at) {
  const time = new Date(at);
  const pad = (/** @type {number} */ value, width = 2) => String(value).padStart(width, '0');
  return `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}.${pad(time.getMilliseconds(), 3)}`;
}

/** The start and end of an id. @param {string} id */
export function short(id) {
  return id.length > 13 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id;
}

/** A word of the API as people write it: in_doubt is "in doubt". @param {string} word */
export function words(word) {
  return word.replaceAll('_', ' ');
}

/** @param {string} text @param {number} max */
export function cut(text, max) {
  return text.length > max ? `${text.slice(0, max - 1)}…` : text;
}
