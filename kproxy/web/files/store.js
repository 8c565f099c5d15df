/**
 * The state of the page. What a person has chosen is in the address, so that it can be shared and
 * bookmarked, and Back works; what kproxy has answered is beside it.
 *
 *     address ─▶ chosen ─▶ source ─▶ answers ─▶ views
 *
 * Views read the store and call its functions; they change nothing in it. An event is named after
 * the part of the page that has changed.
 *
 * Invariants: each part asks by itself, and has its own error; an answer to what is no longer asked
 * for is dropped, an error as well; within one list `count` only grows, and `done` stays.
 */

import { Refused } from "./refused.js";
import * as source from "./source.js";
import { narrowed } from "./terms.js";

const PORTION = 100;
const PORTIONS_KEPT = 60;
const AGAIN_MS = 250;
const GROWS_MS = 120;
/** The pause where exchanges come faster than anybody reads: the proxy keeps its processor. */
const FAST_MS = 200;
const FAST_COUNT = 50;
const OVERVIEW_MS = 500;
const ASKED_MAX = 2;
const QUEUED_MAX = 3;
const VIEWS = ["lanes", "statistics", "records", "faults"];

/** @typedef {import("./source.js").Row} Row */
/** @typedef {"list" | "overview" | "exchange" | "story" | "view"} Part a part that asks kproxy */

/**
 * @typedef {object} Chosen what is in the address
 * @property {string} filter
 * @property {string} view one of VIEWS; "" is the list
 * @property {string} topic of the records
 * @property {string} exchange its name; "" if none is open
 * @property {string} story what it is of, `connection:3`; "" if none is told
 */

/**
 * @typedef {{view: "statistics", data: source.Statistics} | {view: "lanes", data: source.Lanes}
 *   | {view: "records", data: source.Records} | {view: "faults", data: source.Faults}} Shown
 */

export class Store extends EventTarget {
  /** What can be asked for. */
  has = source.HAS;
  hint = source.FILTER_HINT;
  /** @type {Chosen} */
  chosen = fromAddress();
  count = 0;
  done = false;
  /** Whether exchanges came after all that was recorded had been read. */
  grew = false;
  /** The place of the row that the keyboard moves, and of the open exchange; -1: none, or not
   * known yet. */
  cursor = -1;
  /** The names of the recordings, where the page does not have them already. */
  title = "";
  /** @type {source.Live | null} the proxy that runs; null if none does */
  live = null;
  /** @type {string[]} */
  notices = [];
  /** @type {{[part in Part]?: Refused}} */
  errors = {};
  /** @type {source.Overview | null} */
  overview = null;
  /** @type {source.Whole | null} */
  whole = null;
  /** @type {source.Story | null} */
  story = null;
  /** @type {Shown | null} what the view beside the list shows */
  shown = null;
  /** @type {Map<number, Row[]>} */
  #portions = new Map();
  /** @type {Set<number>} the portions that are asked for */
  #asked = new Set();
  /** @type {number[]} the portions to ask for, the latest last */
  #queued = [];
  /** @type {{[part in Part]: number}} how many questions each part has begun */
  #questions = { list: 0, overview: 0, exchange: 0, story: 0, view: 0 };
  /** Whether the list has caught up with a recording that is being written. */
  #caughtUp = false;
  /** Whether the cursor is to be put on the open exchange … */
  #seeks = false;
  /** … or the exchange to be opened that the cursor is on, once its row is there. */
  #opens = false;

  constructor() {
    super();
    addEventListener("popstate", () => this.#choose(fromAddress()));
  }

  /** Begin: ask whether a proxy runs, then for what the address says. */
  async start() {
    const live = await this.#answer("view", () => true, source.live);
    this.live = live?.live ? live : null;
    this.title = live?.title ?? "";
    this.chosen = this.#possible(this.chosen);
    this.#changed("live");
    this.#restart();
    this.#loadExchange();
    this.#loadStory();
    this.#loadView();
  }

  /** Whether there are exchanges to show. */
  get recorded() {
    return this.live?.recorded !== false;
  }

  /** @param {string} filter */
  filter(filter) {
    if (filter === this.chosen.filter && this.errors.list) this.#restart();
    this.#go({ ...this.chosen, filter });
  }

  /**
   * @param {string} term a term that is to hold as well
   * @param {string} [view] of what is left
   */
  narrow(term, view = "") {
    const filter = narrowed(this.chosen.filter, term, this.has.operators);
    this.#go({ ...this.chosen, filter, view, topic: view && this.chosen.topic });
  }

  /**
   * @param {string} view
   * @param {string} [topic]
   */
  view(view, topic = "") {
    this.#go({ ...this.chosen, view, topic });
  }

  /** @param {string} filter whose exchanges are listed */
  show(filter) {
    this.#go({ ...this.chosen, filter, view: "", topic: "" });
  }

  /**
   * @param {string} exchange its name; "" closes it, and its story
   * @param {number} [place] its place in the list, where that is known
   */
  open(exchange, place = -1) {
    if (place >= 0) this.#point(place);
    this.#go({ ...this.chosen, exchange, story: "" });
  }

  /** @param {string} story what it is of; "" closes it */
  tell(story) {
    this.#go({ ...this.chosen, story });
  }

  /**
   * Move the cursor; an exchange that is open gives way to the one there.
   * @param {number} place
   */
  move(place) {
    if (!this.count) return;
    this.#point(Math.max(0, Math.min(this.count - 1, place)));
    this.#opens = this.chosen.exchange !== "";
    this.#openCursor();
  }

  /** Open the exchange at the cursor. */
  openCursor() {
    const row = this.cursor >= 0 ? this.row(this.cursor) : undefined;
    if (row) this.open(row.name, this.cursor);
  }

  /**
   * Add a fault rule; show it with the others.
   * @param {{[word: string]: unknown}} rule
   * @returns {Promise<string>} what is wrong with it; "" if nothing is
   */
  async addFault(rule) {
    try {
      await source.addFault(rule);
    } catch (error) {
      if (error instanceof Refused) return error.message;
      throw error;
    }
    this.view("faults");
    return "";
  }

  /**
   * @param {source.Fault} fault
   * @param {boolean} enabled
   */
  enableFault(fault, enabled) {
    return this.#changeFault(() => source.enableFault(fault, enabled));
  }

  /** @param {source.Fault} fault */
  removeFault(fault) {
    return this.#changeFault(() => source.removeFault(fault));
  }

  /** @param {() => Promise<source.Fault>} change after which the rules are shown as they are now */
  async #changeFault(change) {
    const { view } = this.chosen;
    this.#withdraw("view");
    await this.#answer("view", () => view === this.chosen.view, change);
    this.#changed("view");
  }

  /** @returns {Promise<source.Key[]>} the keys of the filter language */
  async keys() {
    return source.keys().then((found) => found.keys, () => []);
  }

  /**
   * The row at a place, if it is there; else it is asked for.
   * @param {number} place
   * @returns {Row | undefined}
   */
  row(place) {
    const portion = Math.floor(place / PORTION);
    const row = this.#portions.get(portion)?.[place % PORTION];
    if (!row && place >= 0 && place < this.count) this.#queue(portion);
    return row;
  }

  // ---- what is chosen

  /**
   * @param {Chosen} given
   * @param {boolean} [instead] of the last entry of the history
   */
  #go(given, instead = false) {
    const chosen = this.#possible(given);
    const query = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    const text = query.toString();
    const address = text ? source.ADDRESS_MARK + text : location.pathname;
    if (instead) history.replaceState(null, "", address);
    else if (Object.entries(chosen).some(([key, value]) => value !== valueOf(this.chosen, key)))
      history.pushState(null, "", address);
    this.#choose(chosen);
  }

  /** @param {Chosen} given */
  #choose(given) {
    const before = this.chosen;
    const chosen = (this.chosen = this.#possible(given));
    const filters = before.filter !== chosen.filter;
    const views = before.view !== chosen.view || before.topic !== chosen.topic;
    if (filters) this.#restart();
    if (views || filters) this.#loadView();
    if (before.exchange !== chosen.exchange) this.#loadExchange();
    if (before.story !== chosen.story) this.#loadStory();
    if (filters) this.#changed("filter");
  }

  /**
   * Replace a view that is not there by one that is.
   * @param {Chosen} chosen
   * @returns {Chosen}
   */
  #possible(chosen) {
    if (!this.recorded) return { ...chosen, view: "faults", exchange: "", story: "" };
    const { view } = chosen;
    const here = VIEWS.includes(view) && (view !== "faults" || this.live);
    return here && (view !== "records" || this.has.records) ? chosen : { ...chosen, view: "" };
  }

  // ---- the list

  #restart() {
    const current = this.#begin("list");
    this.#portions.clear();
    this.#asked.clear();
    this.#queued = [];
    Object.assign(this, { count: 0, done: false, grew: false, notices: [], overview: null });
    this.#caughtUp = this.#opens = false;
    this.#seek();
    this.#changed("restart");
    if (!this.recorded) return;
    this.#ask(0);
    this.#follow(current);
  }

  /**
   * Ask how many there are, until all is read; of a recording that grows, as long as it does.
   * @param {() => boolean} current
   */
  async #follow(current) {
    let drawn = { count: -1, at: 0 };
    for (;;) {
      await visible();
      if (!current()) return;
      const known = this.count;
      const sought = this.#seeks ? this.chosen.exchange : "";
      const ask = () => source.more(this.chosen.filter, known, sought);
      const found = await this.#answer("list", current, ask);
      if (!found) return;
      this.#withdraw("list"); // rows that were refused are asked for again
      this.#take(found);
      this.#found(sought, found);
      const { count, done } = this;
      const fast = count - known >= FAST_COUNT;
      const overviewMs = fast ? 2 * OVERVIEW_MS : OVERVIEW_MS;
      if (done || (drawn.count !== count && Date.now() - drawn.at >= overviewMs)) {
        drawn = { count, at: Date.now() };
        this.#loadOverview();
      }
      if (done) return;
      await pause(fast ? FAST_MS : GROWS_MS);
    }
  }

  /** @param {source.Rows} found */
  #take({ count, done, grows, notices, error }) {
    this.grew ||= this.#caughtUp && count > this.count;
    this.#caughtUp ||= grows;
    this.count = Math.max(this.count, count);
    this.done ||= done || error !== null;
    this.notices = error ? [...notices, error] : notices;
    this.#changed("list");
  }

  /**
   * Ask for a portion when it is its turn: whoever scrolls fast sees the rows where they stop, not
   * those that they have passed.
   * @param {number} portion
   */
  #queue(portion) {
    const others = this.#queued.filter((each) => each !== portion);
    this.#queued = [...others, portion].slice(-QUEUED_MAX);
    this.#askNext();
  }

  async #askNext() {
    if (this.#asked.size >= ASKED_MAX || this.errors.list) return;
    const portion = this.#queued.pop();
    if (portion === undefined) return;
    await this.#ask(portion);
    this.#askNext();
  }

  /** @param {number} portion */
  async #ask(portion) {
    if (this.#asked.has(portion)) return;
    this.#asked.add(portion);
    const current = this.#current("list");
    const had = this.#portions.get(portion) ?? [];
    const begin = portion * PORTION + had.length;
    const ask = () => source.rows(this.chosen.filter, begin, (portion + 1) * PORTION);
    const found = await this.#answer("list", current, ask);
    if (current()) this.#asked.delete(portion);
    if (!found) return;
    this.#keep(portion, [...had, ...found.rows]);
    this.#take(found);
    this.#openCursor();
  }

  /**
   * @param {number} portion
   * @param {Row[]} rows
   */
  #keep(portion, rows) {
    this.#portions.delete(portion);
    this.#portions.set(portion, rows);
    if (this.#portions.size > PORTIONS_KEPT) {
      const [oldest] = this.#portions.keys();
      this.#portions.delete(oldest);
    }
  }

  async #loadOverview() {
    const current = this.#begin("overview");
    const list = this.#current("list");
    const ask = () => source.overview(this.chosen.filter);
    const found = await this.#answer("overview", () => current() && list(), ask);
    if (!found) return;
    this.overview = found;
    this.#changed("overview");
  }

  // ---- the cursor

  /** @param {number} place */
  #point(place) {
    this.cursor = place;
    this.#seeks = false;
    this.#changed("cursor");
  }

  #openCursor() {
    const row = this.#opens ? this.row(this.cursor) : undefined;
    if (!row) return;
    this.#opens = false;
    this.#go({ ...this.chosen, exchange: row.name, story: "" }, true);
  }

  /** Look for the open exchange in the list. */
  #seek() {
    const { exchange } = this.chosen;
    this.cursor = -1;
    this.#seeks = exchange !== "";
    for (const [portion, rows] of this.#portions) {
      const at = rows.findIndex(({ name }) => name === exchange);
      if (at >= 0) this.#point(portion * PORTION + at);
    }
  }

  /**
   * @param {string} sought
   * @param {source.Rows} found
   */
  #found(sought, { place, done, grows }) {
    if (!sought || sought !== this.chosen.exchange || !this.#seeks) return;
    if (place !== null) this.#point(place);
    else if (done || grows) this.#seeks = false; // the filter leaves it out
  }

  // ---- the other parts

  async #loadExchange() {
    const current = this.#begin("exchange");
    const { exchange } = this.chosen;
    this.whole = null;
    if (exchange && this.row(this.cursor)?.name !== exchange) this.#seek();
    this.#changed("exchange");
    if (!exchange) return;
    if (this.#seeks && (this.done || this.errors.list)) this.#seekOnce();
    const found = await this.#answer("exchange", current, () => source.exchange(exchange));
    if (!found) return;
    this.whole = found;
    this.#changed("exchange");
  }

  /** Look for the open exchange in a list that asks for nothing more by itself. */
  async #seekOnce() {
    const { exchange, filter } = this.chosen;
    const list = this.#current("list");
    const ask = () => source.more(filter, this.count, exchange);
    const found = await this.#answer("overview", list, ask);
    if (found) this.#found(exchange, found);
  }

  async #loadStory() {
    const current = this.#begin("story");
    const { story } = this.chosen;
    this.story = story ? { done: false } : null;
    this.#changed("story");
    if (story)
      await this.#until("story", current, () => source.story(story), (found) => {
        this.story = found;
      });
  }

  async #loadView() {
    const current = this.#begin("view");
    const { chosen } = this;
    this.shown = null;
    this.#changed("view");
    let last = "";
    if (!chosen.view) return;
    await this.#until("view", current, () => viewOf(chosen), (found) => {
      const text = JSON.stringify(found);
      if (text === last) return false; // nothing to make anew
      last = text;
      this.shown = found.shown;
    });
  }

  /**
   * Ask again and again, as long as somebody wants to know and it is not done.
   * @template {{done: boolean}} T
   * @param {Part} part
   * @param {() => boolean} current
   * @param {() => Promise<T>} ask
   * @param {(found: T) => void | false} keep returns false if that changes nothing
   */
  async #until(part, current, ask, keep) {
    for (;;) {
      const found = await this.#answer(part, current, ask);
      if (!found) return;
      if (keep(found) !== false) this.#changed(part);
      if (found.done) return;
      await pause(AGAIN_MS);
      await visible();
      if (!current()) return;
    }
  }

  // ---- questions

  /**
   * A part asks something else: what it asked before is no longer wanted.
   * @param {Part} part
   */
  #begin(part) {
    this.#questions[part] += 1;
    this.#withdraw(part);
    return this.#current(part);
  }

  /** @param {Part} part whose error holds no longer */
  #withdraw(part) {
    if (!this.errors[part]) return;
    delete this.errors[part];
    this.#changed("errors");
  }

  /**
   * @param {Part} part
   * @returns {() => boolean} whether it still asks what it asks now
   */
  #current(part) {
    const question = this.#questions[part];
    return () => question === this.#questions[part];
  }

  /**
   * @template T
   * @param {Part} part
   * @param {() => boolean} current
   * @param {() => Promise<T>} ask
   * @returns {Promise<T | null>} null if it was refused, or is no longer wanted
   */
  async #answer(part, current, ask) {
    try {
      const found = await ask();
      return current() ? found : null;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (current()) {
        this.errors[part] = error;
        this.#changed("errors");
        this.#changed(part);
      }
      return null;
    }
  }

  /** @param {string} what */
  #changed(what) {
    this.dispatchEvent(new Event(what));
  }
}

/**
 * What a view beside the list shows.
 * @param {Chosen} chosen
 * @returns {Promise<{done: boolean, shown: Shown | null}>}
 */
async function viewOf({ view, filter, topic }) {
  switch (view) {
    case "statistics": {
      const data = await source.statistics(filter);
      return { done: data.done, shown: data.done ? { view, data } : null };
    }
    case "lanes": {
      const data = await source.lanes(filter);
      return { done: data.done, shown: { view, data } };
    }
    case "records": {
      const data = await source.records(filter, topic);
      return { done: data.done, shown: data.done ? { view, data } : null };
    }
    default:
      return { done: false, shown: { view: "faults", data: await source.faults() } };
  }
}

/** @param {number} ms */
const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** Wait until somebody can see the page. */
async function visible() {
  while (document.hidden)
    await new Promise((resume) =>
      document.addEventListener("visibilitychange", resume, { once: true }),
    );
}

/**
 * @param {Chosen} chosen
 * @param {string} key
 */
const valueOf = (chosen, key) => chosen[/** @type {keyof Chosen} */ (key)];

/** @returns {Chosen} */
function fromAddress() {
  const { search, hash } = location;
  const text = source.ADDRESS_MARK === "#" ? hash : search;
  const query = new URLSearchParams(text.slice(1));
  const of = (/** @type {string} */ name) => query.get(name) ?? "";
  return {
    filter: of("filter"),
    view: of("view"),
    topic: of("topic"),
    exchange: of("exchange"),
    story: of("story"),
  };
}
