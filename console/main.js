// The page: who is signed in, which view is shown, and what keeps it true.

import { asProblem, get, session } from './api.js';
import { byId, h, show } from './dom.js';
import { clock } from './format.js';
import { button, keepTime, problemBox } from './parts.js';
import { VIEWS, viewOf } from './routes.js';
import { signIn } from './sign-in.js';
import { EventFollower } from './stream.js';

/** @import { Pace } from './stream.js' */
/** @import { Child, Context, GateEvent, Stats, View } from './types.d.ts' */

/** However much happens, a view is read anew this often at most. */
const REST_MS = 1_000;
const MOST_LATELY = 40;
const SAID_MS = 5_000;
/** What makes no event, such as a process that is gone, is seen this late. */
const LOOK_ANYWAY_MS = 15_000;

/** A page that is not told what happens says so, and since when. @type {Record<Pace, (heardAt: number | undefined) => string>} */
const PACES = {
  live: () => 'live',
  waiting: (heardAt) =>
    heardAt === undefined ? 'connecting' : `not live since ${clock(new Date(heardAt).toISOString()).slice(0, 8)}`,
  paused: () => 'paused',
  ended: () => 'signed out',
};
/** Until the gateway answers, somebody who was signed in stays so. */
const ASK_AGAIN_MS = 2_000;

/** @type {Stats['you'] | undefined} */
let you;
/** @type {EventFollower | undefined} */
let follower;
/** @type {{ view: View<any>, drawing: Promise<void> | undefined, looking: Promise<void>, isStale: boolean, isDrawn: boolean } | undefined} */
let current;
/** @type {GateEvent[]} */
const lately = [];
/** @type {Pace} */
let pace = 'waiting';
let saidAt = 0;

/** @param {string} text */
function say(text) {
  saidAt = performance.now();
  show(byId('said'), h('p', {}, text));
  setTimeout(() => performance.now() - saidAt >= SAID_MS && show(byId('said')), SAID_MS + 50);
}

/** @param {'approver' | 'operator' | 'admin'} role */
function may(role) {
  return you !== undefined && (you.roles.includes(role) || you.roles.includes('admin'));
}

function drawFrame() {
  const path = location.hash.split('?')[0] ?? '';
  const isAt = (/** @type {string} */ href) => (href === '#/' ? path === '#/' || path === '' : path.startsWith(href));
  show(
    byId('head'),
    h('a', { class: 'mark', href: '#/' }, 'oncegate'),
    you !== undefined && [
      h('span', { class: `pace ${pace}`, role: 'status' }, PACES[pace](follower?.heardAt)),
      h('span', { class: 'you' }, you.person, h('span', { class: 'dim' }, ` ${you.roles.join(', ')}`)),
      button('Sign out', () => leave(), { tone: 'quiet' }),
    ],
  );
  show(
    byId('nav'),
    you !== undefined &&
      VIEWS.map(([name, href]) => h('a', { href, 'aria-current': isAt(href) ? 'page' : undefined }, name)),
  );
  document.body.classList.toggle('outside', you === undefined);
}

/** @param {string} [why] */
function leave(why) {
  session.end();
  // Whoever sits down next must not find a question of somebody else's that waits for a yes.
  for (const dialog of document.querySelectorAll('dialog')) dialog.close();
  follower?.stop();
  follower = undefined;
  you = undefined;
  current = undefined;
  lately.length = 0;
  drawFrame();
  show(byId('main'), signIn(enter, why));
  document.querySelector('input')?.focus();
}

/** @param {Stats} stats */
function enter(stats) {
  you = stats.you;
  follower = new EventFollower({
    onEvent: hear,
    onPace: (now) => {
      pace = now;
      drawFrame();
      if (now === 'live') void refresh();
    },
    onRefused: () => leave('Your key is not good any more: it was removed from the policies, or lost its roles.'),
  });
  // What happened last is told first: a page that was just opened need not be empty.
  if (stats.log.size > MOST_LATELY) follower.lastId = String(stats.log.size - MOST_LATELY);
  follower.start();
  navigate();
}

/** @param {GateEvent} event */
function hear(event) {
  if (event.name !== 'checkpoint') {
    lately.unshift(event);
    lately.length = Math.min(lately.length, MOST_LATELY);
  }
  if (current !== undefined && (event.name === 'gap' || current.view.hears(event))) void refresh();
}

/** Reads and draws the view; whoever asks while that is under way has it done once more afterwards. */
function refresh() {
  const shown = current;
  if (shown === undefined) return Promise.resolve();
  if (shown.drawing !== undefined) {
    shown.isStale = true;
    return shown.drawing;
  }
  shown.drawing = look(shown).finally(async () => {
    await new Promise((resolve) => setTimeout(resolve, REST_MS));
    shown.drawing = undefined;
    if (shown.isStale && shown === current) {
      shown.isStale = false;
      void refresh();
    }
  });
  return shown.drawing;
}

/** Now, and not after the rest: somebody did something and looks for what came of it. */
async function refreshNow() {
  if (current !== undefined) await look(current);
}

/** One look after another: beside each other they would cost the gateway twice, and the earlier could be drawn last. @param {NonNullable<typeof current>} shown */
function look(shown) {
  shown.looking = shown.looking.then(() => draw(shown));
  return shown.looking;
}

/** @param {NonNullable<typeof current>} shown */
async function draw(shown) {
  if (you === undefined) return;
  /** @type {Context} */
  const context = { you, refresh: refreshNow, lately, may, say };
  try {
    put(shown, shown.view.draw(await shown.view.load(), context));
  } catch (error) {
    const problem = asProblem(error);
    if (shown !== current) return;
    if (problem.status === 401) return leave(problem.message);
    put(shown, problemBox(problem));
    if (problem.code === 'unreachable') setTimeout(refresh, 2000);
  }
}

/** @param {NonNullable<typeof current>} shown @param {Child} content */
function put(shown, content) {
  if (shown !== current) return;
  // Nothing of another view is taken over, also not what somebody typed.
  if (!shown.isDrawn) byId('main').replaceChildren();
  shown.isDrawn = true;
  show(byId('main'), h('h1', {}, shown.view.title), content);
}

function navigate() {
  if (you === undefined) return;
  const view = viewOf(location.hash);
  document.title = `${view.title} · Oncegate`;
  current = { view, drawing: undefined, looking: Promise.resolve(), isStale: false, isDrawn: false };
  drawFrame();
  window.scrollTo(0, 0);
  void refresh();
}

async function begin() {
  keepTime();
  setInterval(() => !document.hidden && void refresh(), LOOK_ANYWAY_MS);
  window.addEventListener('hashchange', () => {
    navigate();
    byId('main').focus({ preventScroll: true });
  });
  if (session.key === null) return leave();
  await resume();
}

/** A gateway that is just starting again says nothing against a key: only a refusal does. */
async function resume() {
  if (session.key === null || you !== undefined) return;
  try {
    enter(await get('/admin/stats'));
  } catch (error) {
    const problem = asProblem(error);
    if (problem.status === 401 || problem.status === 403) return leave(problem.message);
    show(
      byId('main'),
      problemBox(problem),
      h(
        'p',
        {},
        button('Sign in with another key', () => leave()),
      ),
    );
    setTimeout(resume, ASK_AGAIN_MS);
  }
}

void begin();
