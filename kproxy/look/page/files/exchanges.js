/**
 * The exchanges that a filter leaves: their number as a recording grows, their times, their rows.
 * Another filter makes another object.
 *
 *     source.more ─▶ count, done ─┬─▶ overview, when there are others
 *                                 └─▶ cursor: the place of the exchange that it looks for
 *     source.rows ─▶ portions ─▶ rows
 *
 * Invariants: `count` only grows, and `done` stays.
 */

import { Portions } from "./portions.js";
import { pause, visible } from "./questions.js";
import * as source from "./source.js";

const GROWS_MS = 120;
/** The pause where exchanges come faster than anybody reads: the proxy keeps its processor. */
const FAST_MS = 200;
const FAST_COUNT = 50;
const OVERVIEW_MS = 500;

export class Exchanges {
  count = 0;
  done = false;
  /** True once exchanges came after all that was recorded had been read. */
  grew = false;
  /** @type {number | null} the share of the recordings that was read; null if that is all */
  partial = null;
  /** @type {string[]} */
  notices = [];
  /** @type {source.Overview | null} */
  overview = null;
  /** True once the list has caught up with a recording that is being written. */
  #caughtUp = false;
  #filter;
  #questions;
  #cursor;
  #changed;
  #current;
  #portions;

  /**
   * @param {string} filter
   * @param {import("./questions.js").Questions} questions
   * @param {import("./cursor.js").Cursor} cursor
   * @param {(what: string) => void} changed
   */
  constructor(filter, questions, cursor, changed) {
    this.#filter = filter;
    this.#questions = questions;
    this.#cursor = cursor;
    this.#changed = changed;
    this.#current = questions.begin("list");
    this.#portions = new Portions(
      (begin, end) => this.#answer(() => source.rows(filter, begin, end)),
      (found) => {
        this.#take(found);
        changed("rows");
      },
    );
  }

  /**
   * The row at a place, if it is here; else it is asked for.
   * @param {number} place
   * @returns {source.Row | undefined}
   */
  row(place) {
    const row = this.#portions.row(place);
    const isThere = place >= 0 && place < this.count;
    if (!row && isThere && !this.#questions.errors.list) this.#portions.want(place);
    return row;
  }

  /**
   * The place of an exchange, if its row is here; else -1.
   * @param {string} name
   */
  placeOf(name) {
    return this.#portions.placeOf(name);
  }

  /** Ask how many there are, until all is read; of a recording that grows, as long as it does. */
  async follow() {
    this.#portions.loadFirst();
    let drawn = { count: -1, at: 0 };
    for (;;) {
      await visible();
      if (!this.#current()) return;
      const known = this.count;
      if (!(await this.#askMore())) return;
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

  /** @returns {Promise<boolean>} false if that was refused, or is no longer wanted */
  async #askMore() {
    const { sought } = this.#cursor;
    const found = await this.#answer(() => source.more(this.#filter, this.count, sought));
    if (!found) return false;
    this.#questions.withdraw("list"); // rows that were refused are asked for again
    this.#take(found);
    this.#cursor.found(sought, found);
    return true;
  }

  /** Look for the cursor's exchange where nothing more is asked for otherwise. */
  async seekOnce() {
    const { sought } = this.#cursor;
    if (!sought || !(this.done || this.#questions.errors.list)) return;
    const ask = () => source.more(this.#filter, this.count, sought);
    const found = await this.#questions.answer("overview", this.#current, ask);
    if (found) this.#cursor.found(sought, found);
  }

  /** @param {() => Promise<source.Rows>} ask */
  #answer(ask) {
    return this.#questions.answer("list", this.#current, ask);
  }

  /** @param {source.Rows} found */
  #take({ count, done, grows, partial = null, notices, error }) {
    this.grew ||= this.#caughtUp && count > this.count;
    this.#caughtUp ||= grows;
    this.count = Math.max(this.count, count);
    this.done ||= done || error !== null;
    this.partial = this.done ? null : partial;
    this.notices = error ? [...notices, error] : notices;
    this.#changed("list");
  }

  async #loadOverview() {
    const current = this.#questions.begin("overview");
    const isWanted = () => current() && this.#current();
    const ask = () => source.overview(this.#filter);
    const found = await this.#questions.answer("overview", isWanted, ask);
    if (!found) return;
    this.overview = found;
    this.#changed("overview");
  }
}
