/**
 * The state of the page, and what a person does with it. What they have chosen is in the address;
 * what kproxy has answered is beside it.
 *
 *     address ─▶ chosen ─┬─▶ exchanges, portions ─▶ list, overview ──────────┐
 *                        ├─▶ cursor                                         ├─▶ views
 *                        └─▶ questions ─▶ exchange, story, view beside list ─┘
 *
 * Views read the store and call its functions; they change nothing in it. An event is named after
 * the part of the page that has changed.
 */

import { addressOf, fromAddress } from "./address.js";
import { VIEWS, askBeside } from "./beside.js";
import { Cursor } from "./cursor.js";
import { Exchanges } from "./exchanges.js";
import { Questions } from "./questions.js";
import { Refused } from "./refused.js";
import * as source from "./source.js";
import { narrowed } from "./terms.js";

/** @typedef {import("./address.js").Chosen} Chosen */
/** @typedef {import("./beside.js").Shown} Shown */

export class Store extends EventTarget {
  /** The parts that the source can answer. */
  has = source.HAS;
  hint = source.FILTER_HINT;
  /** @type {Chosen} */
  chosen = fromAddress();
  /** The names of the recordings, where the page does not have them already. */
  title = "";
  /** @type {source.Live | null} the proxy that runs; null if none does */
  live = null;
  /** False if nothing says what is found. */
  #findings = true;
  /** @type {source.Whole | null} */
  whole = null;
  /** @type {source.Story | null} */
  story = null;
  /** @type {Shown | null} the content of the view beside the list */
  shown = null;
  #changed = (/** @type {string} */ what) => this.dispatchEvent(new Event(what));
  #questions = new Questions(this.#changed);
  #cursor = new Cursor(this.#changed);
  #exchanges = this.#made();
  /** True while the exchange at the cursor is to be opened, once its row is here. */
  #opens = false;

  constructor() {
    super();
    addEventListener("popstate", () => this.#choose(fromAddress()));
    this.addEventListener("rows", () => this.#openPointed());
  }

  /** Begin: ask whether a proxy runs, then for what the address says. */
  async start() {
    const live = await this.#questions.answer("view", () => true, source.live);
    this.live = live?.live ? live : null;
    this.title = live?.title ?? "";
    this.#findings = live?.findings !== false;
    this.chosen = this.#possible(this.chosen);
    this.#changed("live");
    this.#restart();
    this.#loadExchange();
    this.#loadStory();
    this.#loadView();
  }

  // ---- what is shown

  /** True if there are exchanges to show. */
  get recorded() {
    return this.live?.recorded !== false;
  }

  get errors() {
    return this.#questions.errors;
  }

  /** True if kproxy does not answer any more. */
  get ended() {
    const { list, view } = this.errors;
    return list?.status === 0 || view?.status === 0;
  }

  get count() {
    return this.#exchanges.count;
  }

  get done() {
    return this.#exchanges.done;
  }

  get grew() {
    return this.#exchanges.grew;
  }

  /** The share of the recordings that was read for the list; null if it is all of them. */
  get partial() {
    return this.#exchanges.partial;
  }

  get notices() {
    return this.#exchanges.notices;
  }

  get overview() {
    return this.#exchanges.overview;
  }

  /** The place of the row that the keyboard moves; -1: none, or not known yet. */
  get cursor() {
    return this.#cursor.place;
  }

  /**
   * The row at a place, if it is here; else it is asked for.
   * @param {number} place
   */
  row(place) {
    return this.#exchanges.row(place);
  }

  /** @returns {Promise<source.Key[]>} the keys of the filter language */
  async keys() {
    return source.keys().then((found) => found.keys, () => []);
  }

  // ---- what a person does

  /** @param {string} filter */
  filter(filter) {
    if (filter === this.chosen.filter && this.errors.list) this.#restart();
    this.#go({ ...this.chosen, filter, view: this.#filtered });
  }

  /** The view that a filter is for: findings are those of all exchanges. */
  get #filtered() {
    return this.chosen.view === "findings" ? "" : this.chosen.view;
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
    if (place >= 0) this.#cursor.point(place);
    this.#go({ ...this.chosen, exchange, story: "" });
  }

  /** @param {string} story its subject; "" closes it */
  tell(story) {
    this.#go({ ...this.chosen, story });
  }

  /**
   * Move the cursor; an exchange that is open gives way to the one there.
   * @param {number} place
   */
  move(place) {
    if (!this.count) return;
    this.#cursor.point(Math.max(0, Math.min(this.count - 1, place)));
    this.#opens = this.chosen.exchange !== "";
    this.#openPointed();
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
    this.#questions.withdraw("view");
    await this.#questions.answer("view", () => view === this.chosen.view, change);
    this.#changed("view");
  }

  // ---- what is chosen

  /**
   * @param {Chosen} given
   * @param {boolean} [instead] of the last entry of the history
   */
  #go(given, instead = false) {
    const chosen = this.#possible(given);
    const address = addressOf(chosen);
    if (instead) history.replaceState(null, "", address);
    else if (address !== addressOf(this.chosen)) history.pushState(null, "", address);
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
    return this.isPossible(chosen.view) ? chosen : { ...chosen, view: "" };
  }

  /** @param {string} view */
  isPossible(view) {
    if (view === "faults") return this.live !== null;
    if (view === "findings") return this.#findings;
    return view === "" || (VIEWS.includes(view) && (view !== "records" || this.has.records));
  }

  // ---- what kproxy is asked for

  #restart() {
    this.#exchanges = this.#made();
    this.#opens = false;
    this.#cursor.seek(this.chosen.exchange, -1);
    this.#changed("restart");
    if (this.recorded) this.#exchanges.follow();
  }

  #made() {
    return new Exchanges(this.chosen.filter, this.#questions, this.#cursor, this.#changed);
  }

  #openPointed() {
    const row = this.#opens ? this.row(this.cursor) : undefined;
    if (!row) return;
    this.#opens = false;
    this.#go({ ...this.chosen, exchange: row.name, story: "" }, true);
  }

  async #loadExchange() {
    const current = this.#questions.begin("exchange");
    const { exchange } = this.chosen;
    this.whole = null;
    if (!exchange) this.#cursor.rest();
    else if (this.row(this.cursor)?.name !== exchange)
      this.#cursor.seek(exchange, this.#exchanges.placeOf(exchange));
    this.#changed("exchange");
    if (!exchange) return;
    this.#exchanges.seekOnce();
    const ask = () => source.exchange(exchange);
    const found = await this.#questions.answer("exchange", current, ask);
    if (!found) return;
    this.whole = found;
    this.#changed("exchange");
  }

  async #loadStory() {
    const current = this.#questions.begin("story");
    const { story } = this.chosen;
    this.story = story ? { done: false } : null;
    this.#changed("story");
    if (story)
      await this.#questions.until("story", current, () => source.story(story), (found) => {
        this.story = found;
      });
  }

  async #loadView() {
    const current = this.#questions.begin("view");
    const { chosen } = this;
    this.shown = null;
    this.#changed("view");
    let last = "";
    if (!chosen.view) return;
    await this.#questions.until("view", current, () => askBeside(chosen), (found) => {
      const text = JSON.stringify(found);
      if (text === last) return false; // nothing to make anew
      last = text;
      this.shown = found.shown;
    });
  }
}
