// The start script of the page: signs a person in, shows the view of the address, and keeps it current.

import { asProblem, get, session } from './api.js';
import { byId, h, show } from './dom.js';
import { clock } from './format.js';
import { button, keepTime, problemBox } from './parts.js';
import { NAV_LINKS, viewOf } from './routes.js';
import { signIn } from './sign-in.js';
import { EventReader } from './stream.js';

/** @import { StreamState } from './stream.js' */
/** @import { Child, Context, GateEvent, Stats, View } from './types.d.ts' */

/** The shortest time between two refreshes of a view, however many events arrive. */
const REFRESH_INTERVAL_MS = 1_000;
const MAX_RECENT_EVENTS = 40;
const MESSAGE_MS = 5_000;
/** The view is refreshed this often without events, because some changes cause none, such as a dead process. */
const POLL_INTERVAL_MS = 15_000;

/** The status text for each state of the event stream. @type {Record<StreamState, (heardAt: number | undefined) => string>} */
const STREAM_TEXTS = {
  live: () => 'live',
  waiting: (heardAt) =>
    heardAt === undefined ? 'connecting' : `not live since ${clock(new Date(heardAt).toISOString()).slice(0, 8)}`,
  paused: () => 'paused',
  ended: () => 'signed out',
};
/** How often a reloaded page retries while the gateway does not answer. The person stays signed in. */
const RESUME_RETRY_MS = 2_000;

/** The signed-in person. @type {Stats['you'] | undefined} */
let you;
/** @type {EventReader | undefined} */
let eventReader;
/**
 * The current view. `drawing` lasts until the next refresh may start, `loading` until the queued loads are drawn.
 * @type {{ view: View<any>, drawing: Promise<void> | undefined, loading: Promise<void>, isStale: boolean, isDrawn: boolean } | undefined}
 */
let current;
/** @type {GateEvent[]} */
const recentEvents = [];
/** @type {StreamState} */
let streamState = 'waiting';
let notifiedAt = 0;

/** @param {string} text */
function notify(text) {
  notifiedAt = performance.now();
  show(byId('message'), h('p', {}, text));
  setTimeout(() => performance.now() - notifiedAt >= MESSAGE_MS && show(byId('message')), MESSAGE_MS + 50);
}

/** @param {'approver' | 'operator' | 'admin'} role */
function hasRole(role) {
  return you !== undefined && (you.roles.includes(role) || you.roles.includes('admin'));
}

function drawFrame() {
  const path = location.hash.split('?')[0] ?? '';
  const isAt = (/** @type {string} */ href) => (href === '#/' ? path === '#/' || path === '' : path.startsWith(href));
  show(
    byId('head'),
    h('a', { class: 'mark', href: '#/' }, 'oncegate'),
    you !== undefined && [
      h('span', { class: `pace ${streamState}`, role: 'status' }, STREAM_TEXTS[streamState](eventReader?.heardAt)),
      h('span', { class: 'you' }, you.person, h('span', { class: 'dim' }, ` ${you.roles.join(', ')}`)),
      button('Sign out', () => signOut(), { tone: 'quiet' }),
    ],
  );
  show(
    byId('nav'),
    you !== undefined &&
      NAV_LINKS.map(([name, href]) => h('a', { href, 'aria-current': isAt(href) ? 'page' : undefined }, name)),
  );
  document.body.classList.toggle('outside', you === undefined);
}

/** Signs out, if a person is signed in, and shows the sign-in form. @param {string} [why] why the session ended */
function signOut(why) {
  session.end();
  // The next person must not find an open confirmation of the previous one.
  for (const dialog of document.querySelectorAll('dialog')) dialog.close();
  eventReader?.stop();
  eventReader = undefined;
  you = undefined;
  current = undefined;
  recentEvents.length = 0;
  drawFrame();
  show(byId('main'), signIn(startSession, why));
  document.querySelector('input')?.focus();
}

/** Starts the session of the person in `stats`: reads events and shows the view. @param {Stats} stats */
function startSession(stats) {
  you = stats.you;
  eventReader = new EventReader({
    onEvent: handleEvent,
    onState: (state) => {
      streamState = state;
      drawFrame();
      if (state === 'live') void refresh();
    },
    onRefused: () => signOut('Your key is no longer valid: it was removed from the policies, or lost its roles.'),
  });
  // Start a little in the past, so that a fresh page shows recent events.
  if (stats.log.size > MAX_RECENT_EVENTS) eventReader.lastId = String(stats.log.size - MAX_RECENT_EVENTS);
  eventReader.start();
  navigate();
}

/** @param {GateEvent} event */
function handleEvent(event) {
  if (event.name !== 'checkpoint') {
    recentEvents.unshift(event);
    recentEvents.length = Math.min(recentEvents.length, MAX_RECENT_EVENTS);
  }
  if (current !== undefined && (event.name === 'gap' || current.view.isAffectedBy(event))) void refresh();
}

/** Loads and draws the view. A request during a refresh causes one more refresh afterwards. */
function refresh() {
  const shown = current;
  if (shown === undefined) return Promise.resolve();
  if (shown.drawing !== undefined) {
    shown.isStale = true;
    return shown.drawing;
  }
  shown.drawing = queueLoad(shown).finally(async () => {
    await new Promise((resolve) => setTimeout(resolve, REFRESH_INTERVAL_MS));
    shown.drawing = undefined;
    if (shown.isStale && shown === current) {
      shown.isStale = false;
      void refresh();
    }
  });
  return shown.drawing;
}

/** Refreshes at once, without the interval, because the person waits for the result of an action. */
async function refreshNow() {
  if (current !== undefined) await queueLoad(current);
}

/** Queues a load. Parallel loads would cost the gateway twice, and the older one could be drawn last. @param {NonNullable<typeof current>} shown */
function queueLoad(shown) {
  shown.loading = shown.loading.then(() => draw(shown));
  return shown.loading;
}

/** @param {NonNullable<typeof current>} shown */
async function draw(shown) {
  if (you === undefined) return;
  /** @type {Context} */
  const context = { you, refresh: refreshNow, recentEvents, hasRole, notify };
  try {
    showContent(shown, shown.view.draw(await shown.view.load(), context));
  } catch (error) {
    const problem = asProblem(error);
    if (shown !== current) return;
    if (problem.status === 401) return signOut(problem.message);
    showContent(shown, problemBox(problem));
    if (problem.code === 'unreachable') setTimeout(refresh, 2000);
  }
}

/** @param {NonNullable<typeof current>} shown @param {Child} content */
function showContent(shown, content) {
  if (shown !== current) return;
  // Remove everything of the previous view, including what the person typed there.
  if (!shown.isDrawn) byId('main').replaceChildren();
  shown.isDrawn = true;
  show(byId('main'), h('h1', {}, shown.view.title), content);
}

function navigate() {
  if (you === undefined) return;
  const view = viewOf(location.hash);
  document.title = `${view.title} · Oncegate`;
  current = { view, drawing: undefined, loading: Promise.resolve(), isStale: false, isDrawn: false };
  drawFrame();
  window.scrollTo(0, 0);
  void refresh();
}

async function startPage() {
  keepTime();
  setInterval(() => !document.hidden && void refresh(), POLL_INTERVAL_MS);
  window.addEventListener('hashchange', () => {
    navigate();
    byId('main').focus({ preventScroll: true });
  });
  if (session.key === null) return signOut();
  await resume();
}

/** Signs in again after a reload. Only a refusal ends the session; a gateway that is starting does not. */
async function resume() {
  if (session.key === null || you !== undefined) return;
  try {
    startSession(await get('/admin/stats'));
  } catch (error) {
    const problem = asProblem(error);
    if (problem.status === 401 || problem.status === 403) return signOut(problem.message);
    show(
      byId('main'),
      problemBox(problem),
      h(
        'p',
        {},
        button('Sign in with another key', () => signOut()),
      ),
    );
    setTimeout(resume, RESUME_RETRY_MS);
  }
}

void startPage();
