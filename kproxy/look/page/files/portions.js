/**
 * The rows of a list, in portions that are asked for when they are needed, and forgotten when many
 * others were.
 */

import { pause } from "./questions.js";

/** @typedef {import("./source.js").Row} Row */
/** @typedef {import("./source.js").Rows} Rows */

const PORTION = 100;
const PORTIONS_KEPT = 60;
const ASKED_MAX = 2;
const QUEUED_MAX = 3;
const AGAIN_MS = 250;

export class Portions {
  /** @type {Map<number, Row[]>} the portion that came last is the last */
  #kept = new Map();
  /** @type {Set<number>} the portions that are asked for */
  #asked = new Set();
  /** @type {number[]} the portions to ask for, the latest last */
  #queued = [];
  #ask;
  #take;

  /**
   * @param {(begin: number, end: number) => Promise<Rows | null>} ask returns null where kproxy has
   *   refused, or nobody wants to know any more
   * @param {(found: Rows) => void} take is called when the rows of an answer are here
   */
  constructor(ask, take) {
    this.#ask = ask;
    this.#take = take;
  }

  /**
   * The row at a place, if it is here.
   * @param {number} place
   * @returns {Row | undefined}
   */
  row(place) {
    return this.#kept.get(Math.floor(place / PORTION))?.[place % PORTION];
  }

  /**
   * The place of an exchange, if its row is here; else -1.
   * @param {string} name
   */
  placeOf(name) {
    for (const [portion, rows] of this.#kept) {
      const at = rows.findIndex((row) => row.name === name);
      if (at >= 0) return portion * PORTION + at;
    }
    return -1;
  }

  /**
   * Ask for the portion of a place when it is its turn: whoever scrolls fast sees the rows where
   * they stop, not those that they have passed.
   * @param {number} place
   */
  want(place) {
    const portion = Math.floor(place / PORTION);
    const others = this.#queued.filter((each) => each !== portion);
    this.#queued = [...others, portion].slice(-QUEUED_MAX);
    this.#loadNext();
  }

  /** Ask for the first rows, before anybody knows of them. */
  async loadFirst() {
    await this.#load(0);
  }

  async #loadNext() {
    if (this.#asked.size >= ASKED_MAX) return;
    const portion = this.#queued.pop();
    if (portion === undefined) return;
    if (await this.#load(portion)) this.#loadNext();
  }

  /**
   * @param {number} portion
   * @returns {Promise<boolean>} whether others may be asked for
   */
  async #load(portion) {
    if (this.#asked.has(portion)) return true;
    this.#asked.add(portion);
    const had = this.#kept.get(portion) ?? [];
    const found = await this.#ask(portion * PORTION + had.length, (portion + 1) * PORTION);
    // kproxy looks for them anew, as others were looked for meanwhile: it has them later.
    if (found && !found.rows.length) await pause(AGAIN_MS);
    this.#asked.delete(portion);
    if (!found) return false;
    this.#keep(portion, [...had, ...found.rows]);
    this.#take(found);
    return true;
  }

  /**
   * @param {number} portion
   * @param {Row[]} rows
   */
  #keep(portion, rows) {
    this.#kept.delete(portion);
    this.#kept.set(portion, rows);
    if (this.#kept.size > PORTIONS_KEPT) {
      const [oldest] = this.#kept.keys();
      this.#kept.delete(oldest);
    }
  }
}
