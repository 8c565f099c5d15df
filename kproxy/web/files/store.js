/**
 * The state of the page. What a person has chosen is in the address, so that it can be shared and
 * bookmarked, and Back works; what kproxy has said is beside it.
 *
 *     address ─▶ chosen ─▶ source ─▶ found ─▶ views
 *
 * Views read the store and call its functions; they change nothing in it.
 */

import * as source from "./source.js";

const PORTION = 200;
const PORTIONS_KEPT = 60;
const AGAIN_MS = 250;

/** @typedef {import("./source.js").Row} Row */

export class Store extends EventTarget {
  /** @type {{filter: string, name: string}} */
  chosen = fromAddress();
  count = 0;
  done = false;
  /** @type {string[]} */
  notices = [];
  /** @type {source.Refused | null} */
  wrong = null;
  /** @type {source.Overview | null} */
  overview = null;
  /** @type {source.Whole | null} */
  whole = null;
  /** @type {Map<number, Row[]>} */
  #portions = new Map();
  /** @type {Set<number>} */
  #asked = new Set();
  #turn = 0;

  constructor() {
    super();
    addEventListener("popstate", () => this.#choose(fromAddress()));
  }

  /** Begin: ask for what the address says. */
  start() {
    const { name } = this.chosen;
    this.#restart();
    if (name) this.#open(name);
  }

  /** @param {string} filter */
  filter(filter) {
    this.#go({ ...this.chosen, filter });
  }

  /** @param {string} name of an exchange; "" for none */
  open(name) {
    this.#go({ ...this.chosen, name });
  }

  /**
   * The row at a place, if it is there; else it is asked for.
   * @param {number} place
   * @returns {Row | undefined}
   */
  row(place) {
    const portion = Math.floor(place / PORTION);
    const found = this.#portions.get(portion);
    const row = found?.[place % PORTION];
    if (!row && place < this.count) this.#ask(portion);
    return row;
  }

  /** @param {{filter: string, name: string}} chosen */
  #go(chosen) {
    const query = new URLSearchParams();
    if (chosen.filter) query.set("filter", chosen.filter);
    if (chosen.name) query.set("exchange", chosen.name);
    const text = query.toString();
    history.pushState(null, "", text ? `/?${text}` : "/");
    this.#choose(chosen);
  }

  /** @param {{filter: string, name: string}} chosen */
  #choose(chosen) {
    const before = this.chosen;
    this.chosen = chosen;
    if (before.filter !== chosen.filter) this.#restart();
    if (before.name !== chosen.name) this.#open(chosen.name);
    this.#changed("chosen");
  }

  #restart() {
    this.#turn += 1;
    this.#portions.clear();
    this.#asked.clear();
    Object.assign(this, { count: 0, done: false, notices: [], wrong: null, overview: null });
    this.#ask(0);
  }

  /** @param {number} portion */
  async #ask(portion) {
    if (this.#asked.has(portion)) return;
    this.#asked.add(portion);
    const turn = this.#turn;
    const begin = portion * PORTION;
    try {
      const found = await source.rows(this.chosen.filter, begin, begin + PORTION);
      if (turn !== this.#turn) return;
      this.#keep(portion, found.rows);
      this.count = found.count;
      this.notices = found.error ? [...found.notices, found.error] : found.notices;
      const was = this.done;
      this.done = found.done || found.error !== null;
      if (!this.done) setTimeout(() => turn === this.#turn && this.#again(), AGAIN_MS);
      if (this.done && !was) this.#look(turn);
      this.#changed("rows");
    } catch (error) {
      if (turn === this.#turn) this.#fail(error);
    } finally {
      if (turn === this.#turn) this.#asked.delete(portion);
    }
  }

  /** Ask how many there are by now. */
  #again() {
    if (this.done) return;
    this.#look(this.#turn);
    this.#ask(Math.floor(this.count / PORTION));
  }

  /** @param {number} turn */
  async #look(turn) {
    try {
      const found = await source.overview(this.chosen.filter);
      if (turn !== this.#turn) return;
      this.overview = found;
      this.#changed("overview");
    } catch (error) {
      if (turn === this.#turn) this.#fail(error);
    }
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

  /** @param {string} name */
  async #open(name) {
    this.whole = null;
    if (!name) return this.#changed("exchange");
    try {
      const found = await source.exchange(name);
      if (name !== this.chosen.name) return;
      this.whole = found;
      this.#changed("exchange");
    } catch (error) {
      if (name === this.chosen.name) this.#fail(error);
    }
  }

  /** @param {unknown} error */
  #fail(error) {
    if (!(error instanceof source.Refused)) throw error;
    this.wrong = error;
    this.#changed("wrong");
  }

  /** @param {string} what */
  #changed(what) {
    this.dispatchEvent(new Event(what));
  }
}

/** @returns {{filter: string, name: string}} */
function fromAddress() {
  const query = new URLSearchParams(location.search);
  return { filter: query.get("filter") ?? "", name: query.get("exchange") ?? "" };
}
